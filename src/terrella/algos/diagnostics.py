"""Early warnings: training collapses (RAGEN's "echo trap"), or masked verdicts become more.

The reward spread inside groups and the entropy fall first; once the reward itself falls, it is too
late. All inputs are values that a training step computes anyway.
    metrics = spread_metrics(rewards_PG) | {"diversity": diversity(replies)}
    watch = CollapseWatch()
    warning = watch.see_step({"in_group_std": 0.2, "entropy": 0.7, "zero_variance": 0.1})
    warning = MaskWatch().see_step({"masked": 0.3, "masked/env_error": 0.3})
Two checks stop a run before its optimizer steps: `check_mismatch` and `check_numbers`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from terrella.algos.advantages import zero_variance
from terrella.algos.filters import group_spread
from terrella.core.errors import EngineError
from terrella.core.tokens import ReplyFacts
from terrella.core.types import MASKED

WATCHED = ("in_group_std", "entropy", "zero_variance")
WORLD_METRICS = ("reward", "reply/format_errors")
"""What is also reported by world, in a run with several."""


def spread_metrics(rewards_PG: Tensor) -> dict[str, float]:
    """Mean standard deviation inside groups, and the fraction of groups without any."""
    return {
        "in_group_std": float(group_spread(rewards_PG).mean()),
        "zero_variance": float(zero_variance(rewards_PG).float().mean()),
    }


def mask_metrics(statuses: Sequence[str]) -> dict[str, float]:
    """The share of verdicts that are masked, and the share of each cause that occurs."""
    count = max(len(statuses), 1)
    shares = {cause: sum(status == cause for status in statuses) / count for cause in MASKED}
    causes = {f"masked/{cause}": share for cause, share in shares.items() if share}
    return {"masked": sum(shares.values()), **causes}


def reply_values(replies: Sequence[ReplyFacts]) -> dict[str, list[float]]:
    """The form of replies as values to average, by metric.

    Those of thoughts have a value per reply with a thought, and so may have none.
    """
    thoughts = [reply for reply in replies if reply.thought_tokens is not None]
    return {
        "reply/format_errors": [float(not reply.readable) for reply in replies],
        "reply/truncated": [float(reply.truncated) for reply in replies],
        "thought/tokens": [float(reply.thought_tokens or 0) for reply in thoughts],
        "thought/truncated": [float(reply.thought_truncated) for reply in thoughts],
    }


def reply_metrics(replies: Sequence[ReplyFacts]) -> dict[str, float]:
    """Means of `reply_values`; one without values is left out."""
    values = reply_values(replies)
    return {name: sum(each) / len(each) for name, each in values.items() if each}


def world_values(
    worlds: Sequence[str], rewards: Sequence[float], replies: Sequence[Sequence[ReplyFacts]]
) -> dict[str, list[float]]:
    """Rewards and format errors as values to average, by world; episodes without one are left out.

    All arguments have an item per episode; nan marks a masked verdict.
    """
    values: dict[str, list[float]] = {}
    for world, reward, facts in zip(worlds, rewards, replies, strict=True):
        if world:
            known = [] if math.isnan(reward) else [reward]
            values.setdefault(f"reward/{world}", []).extend(known)
            errors = [float(not reply.readable) for reply in facts]
            values.setdefault(f"reply/format_errors/{world}", []).extend(errors)
    return values


def diversity(replies_PG: Sequence[Sequence[Hashable]]) -> float:
    """Fraction of distinct replies in a group, averaged over groups.

    1 when all replies differ, 1/G when all are the same.
    """
    shares = [len(set(group)) / len(group) for group in replies_PG if group]
    if not shares:
        raise ValueError("diversity is undefined: there are no replies")
    return sum(shares) / len(shares)


MONITOR = "mismatch monitor"
"""Where the errors of both checks come from: a run that is started again would meet them again."""


def check_mismatch(gap: float, limit: float, *, remedy: str) -> None:
    """Stop a run whose sampler and trainer differ by more than the limit, or by nan."""
    check_numbers({"mismatch/mean": gap})
    if gap > limit:
        what = f"sampler and trainer differ by {gap:.3g} in log-probability on average"
        raise EngineError(MONITOR, what, remedy)


def check_numbers(metrics: Mapping[str, float]) -> None:
    """Stop a run that has diverged. A metric without a value must be left out, not nan."""
    diverged = [name for name, value in metrics.items() if math.isnan(value)]
    if diverged:
        raise EngineError(
            MONITOR,
            f"log-probabilities are nan ({', '.join(diverged)}): training has diverged",
            "lower learning_rate or max_grad_norm, and start from an earlier checkpoint",
        )


@dataclass(slots=True)
class CollapseWatch:
    """Warns when a metric stays far below its starting level for several steps in a row."""

    first: int = 10
    """Number of initial steps whose mean is the baseline."""
    patience: int = 10
    """Number of consecutive bad steps before a warning."""
    floor: float = 0.1
    """A metric below this fraction of its baseline is bad."""
    dull_share: float = 0.95
    """A step is bad when at least this fraction of its groups has no reward variance."""
    _seen: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    _low: dict[str, int] = field(default_factory=dict[str, int])

    def see_step(self, metrics: Mapping[str, Any]) -> str | None:
        """Record a step as an engine reports it; return a warning if a problem has lasted."""
        return self.see(**{name: metrics.get(name) for name in WATCHED})

    def see(
        self, *, in_group_std: float | None, entropy: float | None, zero_variance: float | None
    ) -> str | None:
        """Record one step's metrics; return a warning if a problem has lasted, else None.

        Each metric is watched by itself, and one without a value (None or nan) is left out of the
        step: a step that has nothing to train on has no entropy, and that is when to warn.
        """
        warnings = [
            self._falling("in_group_std", in_group_std),
            self._falling("entropy", entropy),
            self._dull(zero_variance),
        ]
        return "; ".join(warning for warning in warnings if warning) or None

    def _dull(self, share: float | None) -> str | None:
        if share is None or math.isnan(share):
            return None
        steps = self._lasting("zero_variance", share >= self.dull_share)
        return f"{share:.0%} of the groups teach nothing, for {steps} steps" if steps else None

    def _falling(self, name: str, value: float | None) -> str | None:
        if value is None or math.isnan(value):
            return None
        seen = self._seen.setdefault(name, [])
        if len(seen) < self.first:
            seen.append(value)
            return None
        baseline = sum(seen) / len(seen)
        steps = self._lasting(name, value < self.floor * baseline)
        return (
            f"{name} is {value:.3g}, it began at {baseline:.3g}, for {steps} steps"
            if steps
            else None
        )

    def _lasting(self, name: str, bad: bool) -> int:
        """Count consecutive bad steps; 0 while the count is below `patience`."""
        self._low[name] = self._low.get(name, 0) + 1 if bad else 0
        return self._low[name] if self._low[name] >= self.patience else 0


@dataclass(slots=True)
class MaskWatch:
    """Warns when the share of masked verdicts stays above its starting level.

    A masked verdict is in no mean. A policy that learns to break the world or the verifier is then
    no longer judged where it would lose, and its reward seems to rise.
    """

    first: int = 10
    """Number of initial steps whose mean is the baseline."""
    patience: int = 3
    """Number of consecutive bad steps before a warning."""
    rise: float = 0.05
    """A share this much above the baseline is bad."""
    most: float = 0.05
    """The highest baseline: a run that begins with a higher share is warned about, too."""
    _seen: list[float] = field(default_factory=list[float])
    _bad: int = 0

    def see_step(self, metrics: Mapping[str, Any]) -> str | None:
        """Record a step as an engine reports it; return a warning if a rise has lasted."""
        share = metrics.get("masked")
        if share is None:
            return None
        if len(self._seen) < self.first:
            self._seen.append(share)
        baseline = min(self.most, sum(self._seen) / len(self._seen))
        self._bad = self._bad + 1 if share > baseline + self.rise else 0
        if self._bad < self.patience:
            return None
        causes = [
            f"{cause} {metrics[f'masked/{cause}']:.0%}"
            for cause in MASKED
            if metrics.get(f"masked/{cause}")
        ]
        named = f" ({', '.join(causes)})" if causes else ""
        return (
            f"{share:.0%} of the verdicts are masked{named}, "
            f"it began at {sum(self._seen) / len(self._seen):.0%}, for {self._bad} steps"
        )
