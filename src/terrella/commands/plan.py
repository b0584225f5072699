"""`terrella plan MODEL`: play test instances by planning in a world model.

Random play and, where there is one, the expert play the same instances.
    metrics = Plan(Plan.Config(world=Sokoban.Config(), folder=Path("runs/sokoban"))).run()
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terrella.core.bounds import check_least
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError
from terrella.core.protocols import Policy, Progress
from terrella.core.types import Split
from terrella.core.world import World
from terrella.engines.configs import EngineConfig
from terrella.evals.policy_eval import evaluate_policy
from terrella.policies.basic import Expert, Random
from terrella.rollout.tasks import distinct_instances
from terrella.show.progress import SilentProgress, make_progress, show_metrics
from terrella.show.tables import interval_text
from terrella.trust.certificate import Certificate
from terrella.trust.horizon import mean_row
from terrella.world_models.certified import CERTIFICATE, load_certified_model
from terrella.world_models.planner import Planner

DRAWS = 4
"""Seeds that are drawn for each instance: several seeds may give the same one."""
MAX_SAMPLES = 256
"""Most samples per query that are taken over from a certificate: its folder may be anybody's."""


class Plan(Configurable):
    """The command; `run` returns the metrics."""

    @dataclass(frozen=True, kw_only=True)
    class Config(EngineConfig):
        """The world to play, the model to plan in, and the planner."""

        world: World.Config
        folder: Local[Path]
        planner: Planner.Config = field(default_factory=lambda: Planner.Config(depth=8))
        samples: int = 0
        """Samples per query; 0 is as many as the certificate was measured with, or 1 without one.

        1 follows the most likely result, which is enough in a deterministic world.
        """
        instances: int = 40
        seed: int = 0

        def __post_init__(self) -> None:
            check_least(self, samples=0, instances=1)

    config: Config

    def run(self, progress: Progress | None = None) -> dict[str, Any]:
        """Measure the success of the planner, random play and the expert."""
        config, progress = self.config, progress or SilentProgress()
        certified_model = load_certified_model(
            config.folder, self.samples, config.world, engine=config.engine_settings
        )
        risk_estimator = certified_model.risk_estimator
        planner = Planner(config.planner, risk_estimator)
        began = time.monotonic()
        metrics: dict[str, Any] = {planner.name: self._success(planner, progress)}
        metrics["seconds"] = time.monotonic() - began
        if certified_model.certificate is not None:
            metrics["not_certified"] = list(certified_model.certificate.reasons)
        metrics["queries"] = planner.cost.queries
        metrics["random"] = self._success(Random.Config().build(), progress)
        if config.world.build().has_expert:
            metrics["expert"] = self._success(Expert.Config().build(), progress)
        return metrics

    @property
    def samples(self) -> int:
        """Samples per query: a certificate only holds for the number that it was measured with."""
        path = self.config.folder / CERTIFICATE
        if self.config.samples or not path.exists():
            return self.config.samples or 1
        about = Certificate.load(path).sections.get("about")
        found = about.get("samples") if isinstance(about, Mapping) else None
        if type(found) is not int or not 1 <= found <= MAX_SAMPLES:
            raise ConfigError(
                str(path),
                f"says {ascii(found)[:40]} samples per query, and 1 to {MAX_SAMPLES} are possible",
                "certify again, or give a number: --set samples=8",
            )
        return found

    def _success(self, policy: Policy, progress: Progress) -> dict[str, Any]:
        """Instance by instance: a plan may take a minute, and more in a model of another world."""
        world, successes = self.config.world.build(), list[float]()
        progress.phase(f"play test instances: {policy.name}", len(self.seeds))
        progress.advance(0)
        for seed in self.seeds:
            played = evaluate_policy(
                lambda: world, policy, seeds=[seed], split=Split.TEST, num_envs=1
            )
            successes += played.successes
            progress.advance(len(successes), success=sum(successes) / len(successes))
        return dict(mean_row(successes))

    @functools.cached_property
    def seeds(self) -> list[int]:
        """Of distinct test instances: a small world may have fewer than were asked for."""
        first, count = self.config.seed, self.config.instances
        drawn = range(first, first + DRAWS * count)
        return distinct_instances(self.config.world.build(), drawn, Split.TEST, most=count)


def run(config: Plan.Config) -> dict[str, Any]:
    """Plan and show the metrics."""
    with make_progress() as progress:
        metrics = Plan(config).run(progress)
    rows = []
    for name, metric in metrics.items():
        if isinstance(metric, dict) and "mean" in metric:
            rows.append((f"success: {name}", f"{interval_text(metric)}, n = {metric['n']}"))
    if metrics.get("not_certified"):
        rows.append(("not certified", "; ".join(metrics["not_certified"])))
    rows.append(("queries to the model", f"{metrics['queries']:,}"))
    rows.append(("seconds", f"{metrics['seconds']:.1f}"))
    show_metrics(f"planned in {config.folder}", rows)
    return metrics
