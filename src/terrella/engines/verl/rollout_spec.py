"""What every process of a verl run needs to play episodes: one JSON file, no code.

The file holds the configs of the episode source and of the algorithm; each process builds its own
rollout, codec and tasks from it.
    RolloutSpec.of(source, rlvr, seed=0).write(file)
    RolloutSpec.read(file).source().make_rollout(tokenizer)
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from terrella.core.config import dump, rebuild
from terrella.core.files import read_json, write_json
from terrella.engines.budget import EnvStepBudget
from terrella.engines.configs import RlvrConfig
from terrella.rollout.fanout import search_path
from terrella.rollout.source import EpisodeSource


@dataclass(frozen=True, kw_only=True)
class RolloutSpec:
    """The settings that all processes of a run share."""

    episodes: dict[str, Any]
    """The dumped `EpisodeSource`."""
    rlvr: dict[str, Any]
    """The dumped `RlvrConfig`."""
    seed: int
    path: list[str]
    """The command's module search path: a user's own world may be in any folder."""
    context_tokens: int = 0
    """Most tokens that a rollout server reads; 0 for no bound."""
    env_steps: dict[str, int] = field(default_factory=lambda: {"limit": 0, "spent": 0})
    """The budget of real env steps: its limit (0 for none) and what was spent before training."""

    @classmethod
    def of(
        cls,
        source: EpisodeSource,
        rlvr: RlvrConfig,
        *,
        seed: int,
        budget: EnvStepBudget | None = None,
        context_tokens: int = 0,
    ) -> RolloutSpec:
        env_steps = {"limit": budget.limit, "spent": budget.spent} if budget else {}
        return cls(
            episodes=dump(source),
            rlvr=dump(rlvr),
            seed=seed,
            path=search_path(),
            context_tokens=context_tokens,
            env_steps={"limit": 0, "spent": 0, **env_steps},
        )

    def write(self, file: Path) -> None:
        write_json(file, asdict(self))

    @classmethod
    def read(cls, file: str | Path) -> RolloutSpec:
        return cls(**read_json(Path(file)))

    @property
    def settings(self) -> RlvrConfig:
        settings: RlvrConfig = rebuild(self.rlvr)
        return settings

    @property
    def budget(self) -> EnvStepBudget:
        return EnvStepBudget(**self.env_steps)

    def source(self) -> EpisodeSource:
        """The episode source; modules of a user's own world are imported first."""
        sys.path += [folder for folder in self.path if folder not in sys.path]
        for name in _modules(self.episodes):
            importlib.import_module(name)
        source: EpisodeSource = rebuild(self.episodes)
        return source


def _modules(value: Any) -> list[str]:
    """Modules of all configs inside a dumped one: only defined classes are known by name."""
    if isinstance(value, list):
        return [name for item in value for name in _modules(item)]
    if not isinstance(value, dict):
        return []
    own = [value["class"].split(":")[0]] if isinstance(value.get("class"), str) else []
    return own + [name for item in value.values() for name in _modules(item)]
