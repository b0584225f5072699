"""Claims about the arms of an experiment, decided by one stated test.

A seed of the whole arm, its base included, is the unit of replication: instances are paired inside
a seed, and each seed gives one difference. A claim is tested by a one-sided t-test over seeds,
corrected (Holm) for all the claims that its table states. It `holds`, it `fails` (the opposite is
shown), or it is `undecided`. "Not below" needs a margin that was stated before. Scores are on a
grid (shares of n instances), so seeds may agree by chance: the spread over seeds is taken to be at
least that of rounding to the grid.
    decide([[0.33, 0.07, 0.15], [0.0, 0.1]], thresholds=[threshold()] * 2, grids=[0.01] * 2)
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from terrella.core.stats import mean_interval, student_t_tail

ALPHA = 0.025
"""Level of a one-sided test: a claim that holds alone has a 95% interval above its threshold."""
MARGIN = 0.05
"""How far below still counts as "not below", unless a recipe states another margin."""
LEAST_SEEDS = 3
"""With fewer nothing is decided."""
SAME = 1e-12
"""Differences below this are rounding."""
TEST = (
    f"paired by instance inside a seed; one-sided t-test over seeds (alpha {ALPHA}), "
    "Holm's correction for all claims of the table; spread over seeds at least that of rounding"
)


def stated_test(looks: int = 1) -> str:
    """The test in words; `looks` as in `decide`."""
    if looks == 1:
        return TEST
    return f"{TEST}; each p-value multiplied by {looks}, for so many decisions as seeds are added"


class Decision(enum.StrEnum):
    """What the seeds show about a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"


class Claim(NamedTuple):
    """`better` scores higher than `worse` at pass@k or, with `not_below`, not lower."""

    better: str
    worse: str
    k: int = 1
    not_below: bool = False


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A claim's evidence, seed by seed, and what it shows."""

    per_seed: list[float]
    mean: float | None
    """None without a seed."""
    low: float | None
    high: float | None
    """95% interval over seeds, of this claim alone; None where the seeds show no spread."""
    threshold: float
    """What the mean must lie above: 0, or minus the margin."""
    p: float
    """Corrected p-value of the test that the mean is above the threshold."""
    p_against: float
    """Corrected p-value of the test that it is below."""
    verdict: Decision


def threshold(*, not_below: bool = False, margin: float = MARGIN) -> float:
    """What a difference must lie above: 0, or minus the margin of a claim "not below"."""
    return -margin if not_below else 0.0


def seed_differences(pairs: Iterable[tuple[ArrayLike, ArrayLike]]) -> list[float]:
    """One difference for each seed, from both arms' values on the instances of that seed."""
    differences = []
    for better, worse in pairs:
        first, second = np.asarray(better, np.float64), np.asarray(worse, np.float64)
        if first.shape != second.shape or first.ndim != 1:
            raise ValueError(f"arms of shapes {first.shape} and {second.shape} cannot be paired")
        differences.append(float((first - second).mean()))
    return differences


def pass_grid(*, instances: int, samples: int, k: int = 1) -> float:
    """The largest step between two neighbouring values of a seed's mean pass@k."""
    return k / (instances * samples)


def decide(
    differences: Sequence[Sequence[float]],
    *,
    thresholds: Sequence[float],
    grids: Sequence[float],
    looks: int = 1,
) -> list[Decided]:
    """Decide all claims of one table together.

    Seeds that are added because a claim was undecided make a further look at it, and one would
    add seeds until something holds. So `looks`, how often the claims are to be decided, is stated
    before the first time, and each p-value is multiplied by it, the first time as well. A first
    look without it has used up alpha: with a second one, a claim without any effect holds in up
    to 1.5 alpha of all cases.
    Claims without a seed are listed, too: they count in the correction, which thus does not change
    while jobs finish. `grids` are the steps between scores that a seed can have, 0 where scores
    are no shares: then seeds that agree to the last digit decide nothing.
    """
    rows = [
        (values, edge, grid**2 / 12)
        for values, edge, grid in zip(differences, thresholds, grids, strict=True)
    ]
    above = _times(looks, holm([_p_above(*row) for row in rows]))
    against = _times(looks, holm([_p_against(*row) for row in rows]))
    return [
        _decided(*row, p, p_against) for row, p, p_against in zip(rows, above, against, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction; each returned value is compared with alpha."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted


def _times(looks: int, p_values: Sequence[float]) -> list[float]:
    return [min(1.0, looks * p) for p in p_values]


def _decided(
    values: Sequence[float], edge: float, floor: float, p: float, p_against: float
) -> Decided:
    known = _standard_error(values, floor) > SAME
    low, high = mean_interval(values, least_variance=floor) if known else (None, None)
    verdict = Decision.UNDECIDED
    if p <= ALPHA:
        verdict = Decision.HOLDS
    elif p_against <= ALPHA:
        verdict = Decision.FAILS
    return Decided(
        per_seed=list(values),
        mean=math.fsum(values) / len(values) if values else None,
        low=low,
        high=high,
        threshold=edge,
        p=p,
        p_against=p_against,
        verdict=verdict,
    )


def _p_above(values: Sequence[float], edge: float, floor: float) -> float:
    """One-sided p-value of "the mean is at most `edge`"; 1 with too few seeds."""
    t = _t_value(values, edge, floor)
    return 1.0 if t is None else student_t_tail(t, len(values) - 1)


def _p_against(values: Sequence[float], edge: float, floor: float) -> float:
    """One-sided p-value of "the mean is above `edge`"; 1 with too few seeds."""
    t = _t_value(values, edge, floor)
    return 1.0 if t is None else student_t_tail(-t, len(values) - 1)


def _t_value(values: Sequence[float], edge: float, floor: float) -> float | None:
    """Distance of the mean from the edge in standard errors.

    None with too few seeds, or where they show no spread.
    """
    error = _standard_error(values, floor)
    if len(values) < LEAST_SEEDS or error < SAME:
        return None
    return (math.fsum(values) / len(values) - edge) / error


def _standard_error(values: Sequence[float], floor: float) -> float:
    """Standard error of the mean over seeds; 0 where one seed shows none.

    The variance is at least `floor`.
    """
    n = len(values)
    if n < 2:
        return 0.0
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return math.sqrt(max(variance, floor) / n)
