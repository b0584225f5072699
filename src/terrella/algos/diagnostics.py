"""Signs that an agent's training collapses, from what each step already knows; a warning before the reward falls.

The spread inside groups and the entropy fall first; by the time the reward falls, it is too late (the "echo trap").
    figures = spread_figures(rewards_PG) | {"diversity": diversity(replies)}
    watch = CollapseWatch(); reason = watch.see(in_group_std=..., entropy=..., zero_variance=...)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from terrella.algos.advantages import zero_variance
from terrella.algos.filters import group_spread


def spread_figures(rewards_PG: Tensor) -> dict[str, float]:
    """Mean spread inside a group, and the share of groups without any."""
    return {
        "in_group_std": float(group_spread(rewards_PG).mean()),
        "zero_variance": float(zero_variance(rewards_PG).float().mean()),
    }


def diversity(replies_PG: Sequence[Sequence[Hashable]]) -> float:
    """Share of different replies inside a group, a mean over groups: 1 when all differ, 1/G when all are the same."""
    shares = [len(set(group)) / len(group) for group in replies_PG if group]
    if not shares:
        raise ValueError("no replies, no diversity")
    return sum(shares) / len(shares)


@dataclass(slots=True)
class CollapseWatch:
    """Warns when a figure stays under a share of what it was in the first steps, for some steps in a row."""

    first: int = 10
    """Steps that set the standard."""
    patience: int = 10
    floor: float = 0.1
    """Share of the standard under which a figure is a bad sign."""
    dull_share: float = 0.95
    """Share of groups without variance above which a step taught nothing worth the name."""
    _seen: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    _low: dict[str, int] = field(default_factory=dict[str, int])

    def see(self, *, in_group_std: float, entropy: float, zero_variance: float) -> str | None:
        """One step's figures; a reason to worry, once it has lasted, else None."""
        reasons = [self._falling("in_group_std", in_group_std), self._falling("entropy", entropy)]
        dull = self._lasting("zero_variance", zero_variance >= self.dull_share)
        if dull:
            reasons.append(f"{zero_variance:.0%} of the groups teach nothing, for {dull} steps")
        return "; ".join(reason for reason in reasons if reason) or None

    def _falling(self, name: str, value: float) -> str | None:
        seen = self._seen.setdefault(name, [])
        if len(seen) < self.first:
            seen.append(value)
            return None
        standard = sum(seen) / len(seen)
        steps = self._lasting(name, value < self.floor * standard)
        return f"{name} is {value:.3g}, it began at {standard:.3g}, for {steps} steps" if steps else None

    def _lasting(self, name: str, bad: bool) -> int:
        """How long this has been bad, once that is long enough; else 0."""
        self._low[name] = self._low.get(name, 0) + 1 if bad else 0
        return self._low[name] if self._low[name] >= self.patience else 0
