"""`terrella plan MODEL`: play test instances by looking ahead in a model, beside random policy and expert.

figures = Plan(Plan.Config(world=Sokoban.Config(), folder=Path("runs/sokoban"))).run()
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terrella.core.config import Configurable
from terrella.core.protocols import Policy
from terrella.core.types import Split
from terrella.core.world import World
from terrella.policies.basic import Expert, Random
from terrella.show.progress import show_figures
from terrella.trust.horizon import mean_row
from terrella.use.imagine import load_imagination
from terrella.use.plan import Planner
from terrella.use.policy_eval import evaluate_policy


class Plan(Configurable):
    """The stage: `run` returns the figures."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """What to play, and how far to look."""

        world: World.Config
        folder: Path
        planner: Planner.Config = field(default_factory=lambda: Planner.Config(depth=8))
        samples: int = 1
        """Answers per question: 1 follows the likeliest result, which is enough where there is no chance."""
        instances: int = 40
        seed: int = 0

    config: Config

    def run(self) -> dict[str, Any]:
        """Success of the planner and of what needs no model, on the same test instances."""
        config = self.config
        assessor = load_imagination(config.folder, config.samples).assessor
        planner, began = Planner(config.planner, assessor), time.monotonic()
        found: dict[str, Any] = {planner.name: self._success(planner)}
        found["seconds"], found["questions"] = time.monotonic() - began, planner.spent.questions
        found["random"] = self._success(Random.Config().build())
        if config.world.build().has_expert:
            found["expert"] = self._success(Expert.Config().build())
        return found

    def _success(self, policy: Policy) -> dict[str, Any]:
        seeds = range(self.config.seed, self.config.seed + self.config.instances)
        played = evaluate_policy(self.config.world.build, policy, seeds=seeds, split=Split.TEST, side_by_side=1)
        return dict(mean_row(played.successes))


def run(config: Plan.Config) -> dict[str, Any]:
    """Plan and show the figures."""
    found = Plan(config).run()
    rows = [(f"success: {name}", f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}], n = {row['n']}")
            for name, row in found.items() if isinstance(row, dict) and "mean" in row]  # fmt: skip
    rows += [("questions to the model", f"{found['questions']:,}"), ("seconds", f"{found['seconds']:.1f}")]
    show_figures(f"planned in {config.folder}", rows)
    return found
