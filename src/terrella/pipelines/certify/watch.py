"""Progress inside the sections of a certificate: predictions and steps are counted as they happen.

How many there will be is an upper bound, since episodes end early.
    watch.begin(progress, "certify, 1 of 6: risk", total=3000)
    model = watch.model(model); policy = watch.policy(policy)
    watch.end()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import Policy, Progress, WorldModel
from terrella.core.types import Moment
from terrella.pipelines.certify.records import CertifyConfig
from terrella.show.progress import SilentProgress


def section_sizes(config: CertifyConfig) -> Mapping[str, int]:
    """Units of each section: predicted steps, or steps of a policy, real and imagined."""
    depth = min(config.depth, config.world.max_steps)
    episode = 2 * config.world.max_steps
    return {
        "risk": (config.calibration + config.held_out) * len(config.under),
        "one_step": 1,
        "horizon": config.horizon_episodes
        * len(config.under)
        * (config.world.max_steps + 3 * depth),
        "coverage": 1,
        "ranking": len(config.policies or ()) * config.ranked_on * episode,
        "exploitability": config.exploited_on * episode,
    }


class Watch:
    """Counts in the section that is being measured."""

    def __init__(self) -> None:
        self.progress: Progress = SilentProgress()
        self.total = self.done = 0

    def begin(self, progress: Progress, title: str, total: int) -> None:
        """Show a section at once: it can take minutes."""
        self.progress, self.total, self.done = progress, max(total, 1), 0
        progress.phase(title, self.total)
        progress.advance(0)

    def add(self, units: int) -> None:
        """More units are done; the last one is left for `end`."""
        self.done = min(self.done + units, self.total - 1)
        self.progress.advance(self.done)

    def end(self) -> None:
        self.progress.advance(self.total)

    def model(self, model: WorldModel) -> WorldModel:
        """The model, counted by predictions."""
        return _WatchedModel(model, self)

    def policy(self, policy: Policy) -> Policy:
        """The policy, counted by actions."""
        return _WatchedPolicy(policy, self, policy.name)


@dataclass(frozen=True)
class _WatchedModel:
    model: WorldModel
    watch: Watch

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        distributions = self.model.predict(queries)
        self.watch.add(len(queries))
        return distributions


@dataclass
class _WatchedPolicy:
    policy: Policy
    watch: Watch
    name: str

    def act(self, moment: Moment) -> str:
        action = self.policy.act(moment)
        self.watch.add(1)
        return action
