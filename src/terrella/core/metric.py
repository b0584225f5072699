"""A metric: a mean with its 95% interval, and what it is a mean of.

Metric.of([1.0, 0.0, None, 1.0])  ->  mean 0.667, n = 3, masked = 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from terrella.core.stats import mean_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A mean with its 95% interval. `low` and `high` are None where one value shows no spread."""

    mean: float
    low: float | None
    high: float | None
    n: int
    masked: int = 0
    """Values that say nothing (a verifier failed); they are in no mean."""
    seeds: int = 1
    """How many independent runs the mean is over."""

    @classmethod
    def of(cls, values: Sequence[float | None], *, seeds: int = 1) -> Metric:
        """The mean of the values that are not masked (None)."""
        known = [value for value in values if value is not None]
        if not known:
            raise ValueError(f"no value to average: all {len(values)} are masked")
        low, high = mean_interval(known)
        spread = math.isfinite(low)
        return cls(
            mean=math.fsum(known) / len(known),
            low=low if spread else None,
            high=high if spread else None,
            n=len(known),
            masked=len(values) - len(known),
            seeds=seeds,
        )

    @classmethod
    def over_seeds(cls, values: Sequence[float]) -> Metric:
        """The mean over independent runs, one value each."""
        return cls.of(values, seeds=len(values))

    def __str__(self) -> str:
        return f"{self.mean:.3f}{self.interval}, n = {self.n:,}"

    @property
    def interval(self) -> str:
        """` [0.908, 0.967]`, or nothing where there is no interval."""
        if self.low is None or self.high is None:
            return ""
        return f" [{self.low:.3f}, {self.high:.3f}]"
