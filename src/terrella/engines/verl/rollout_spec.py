"""What every process of a verl run needs to play episodes: one JSON file, no code.

The file holds configs of a rollout and of the algorithm; each process builds its own rollout, codec
and tasks from it.
    RolloutSpec.of(rollout_config, "action", rlvr, seed=0).write(file)
    RolloutSpec.read(file).make_rollout(tokenizer)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from terrella.codecs.choose import codec_for
from terrella.core.config import dump, load
from terrella.core.files import read_json, write_json
from terrella.core.tokens import Task
from terrella.core.types import Split
from terrella.engines.configs import RlvrConfig
from terrella.rollout.fanout import search_path
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import Ask, tasks_for


@dataclass(frozen=True, kw_only=True)
class RolloutSpec:
    """The settings that all processes of a run share."""

    rollout: dict[str, Any]
    """The dumped `Rollout.Config`."""
    rlvr: dict[str, Any]
    """The dumped `RlvrConfig`."""
    ask: Ask
    seed: int
    path: list[str]
    """The command's module search path: a user's own world may be in any folder."""

    @classmethod
    def of(cls, rollout: Rollout.Config, ask: Ask, rlvr: RlvrConfig, *, seed: int) -> RolloutSpec:
        return cls(rollout=dump(rollout), rlvr=dump(rlvr), ask=ask, seed=seed, path=search_path())

    def write(self, file: Path) -> None:
        write_json(file, asdict(self))

    @classmethod
    def read(cls, file: str | Path) -> RolloutSpec:
        return cls(**read_json(Path(file)))

    @property
    def settings(self) -> RlvrConfig:
        settings: RlvrConfig = load(self.rlvr)
        return settings

    def rollout_config(self) -> Rollout.Config:
        """The rollout's config; modules of a user's own world are imported first."""
        sys.path += [folder for folder in self.path if folder not in sys.path]
        for name in _modules(self.rollout):
            importlib.import_module(name)
        config: Rollout.Config = load(self.rollout)
        return config

    def make_rollout(self, tokenizer: Any) -> Rollout:
        config = self.rollout_config()
        return Rollout(config, codec_for(tokenizer, max_actions=config.max_actions))

    def tasks(self, split: Split) -> Callable[[int], Task]:
        return tasks_for(self.ask, self.rollout_config().world, split=split, seed=self.seed)


def _modules(value: Any) -> list[str]:
    """Modules of all configs inside a dumped one: `load` accepts only imported classes."""
    if isinstance(value, list):
        return [name for item in value for name in _modules(item)]
    if not isinstance(value, dict):
        return []
    own = [value["class"].split(":")[0]] if isinstance(value.get("class"), str) else []
    return own + [name for item in value.values() for name in _modules(item)]
