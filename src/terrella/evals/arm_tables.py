"""The table of a comparison from its per-instance rows: arms, their spread over seeds, claims.

`terrella reproduce` and `benchmarks/tables.py --recompute` call the same functions, so a published
table can be computed again from the rows beside it.
    rows = {"spa": {"0": InstanceRows(successes=[8, 3], samples=8)}, "vanilla": ...}
    arm_passes(rows["spa"]); decide_claims(rows, [Claim("spa", "vanilla")], margin=0.05)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from terrella.core.claims import MARGIN, Claim, decide, pass_grid, seed_differences, threshold
from terrella.core.stats import mean_interval
from terrella.evals.pass_at_k import FloatArray, pass_values, powers_of_two


@dataclass(frozen=True, kw_only=True)
class InstanceRows:
    """What one seed of an arm won on each test instance."""

    successes: list[int]
    samples: int
    """Episodes per instance."""
    judged: list[int] | None = None
    """Episodes by instance that were not masked; None if none was."""

    def passes(self, k: int) -> FloatArray:
        """pass@k of each instance; NaN where fewer than k episodes were judged."""
        judged = self.judged or [self.samples] * len(self.successes)
        return np.array(pass_values(self.successes, judged, k), dtype=np.float64)


ArmRows = Mapping[str, Mapping[str, InstanceRows]]
"""Rows by arm and seed."""


def arm_passes(seeds: Mapping[str, InstanceRows]) -> dict[str, Any]:
    """pass@k over seeds, and how many of the seeds are different runs."""
    runs = list(seeds.values())
    table: dict[str, Any] = {"runs": len({(tuple(run.successes), run.samples) for run in runs})}
    for k in powers_of_two(min(run.samples for run in runs)):
        passes = [run.passes(k) for run in runs]
        if not all(np.isfinite(each).any() for each in passes):
            continue  # a run without an instance that has k judged episodes
        values = [float(each[np.isfinite(each)].mean()) for each in passes]
        interval = mean_interval(values)
        table[f"pass@{k}"] = {
            "mean": sum(values) / len(values),
            "interval": list(interval) if np.isfinite(interval).all() else None,
            "per_seed": values,
        }
    return table


def decide_claims(
    rows: ArmRows, claims: Sequence[Claim], *, margin: float = MARGIN, looks: int = 1
) -> list[dict[str, Any]]:
    """All claims of a table, decided together over the seeds that both arms have."""
    pairs = [_values(rows, claim) for claim in claims]
    decided = decide(
        [seed_differences(each) for each in pairs],
        thresholds=[threshold(not_below=claim.not_below, margin=margin) for claim in claims],
        grids=[_grid(rows, claim) for claim in claims],
        looks=looks,
    )
    return [
        {
            **claim._asdict(),
            "seeds": len(result.per_seed),
            "n": min((len(better) for better, _ in each), default=0),
            **asdict(result),
        }
        for claim, each, result in zip(claims, pairs, decided, strict=True)
    ]


def _grid(rows: ArmRows, claim: Claim) -> float:
    """The grid of the arm with fewer episodes; 0 if nothing was run."""
    runs = [run for arm in (claim.better, claim.worse) for run in rows.get(arm, {}).values()]
    steps = [
        pass_grid(instances=len(run.successes), samples=run.samples, k=claim.k) for run in runs
    ]
    return max(steps, default=0.0)


def _values(rows: ArmRows, claim: Claim) -> list[tuple[FloatArray, FloatArray]]:
    """pass@k of both arms on the instances of each common seed.

    A pair of runs that repeats another one, instance by instance, is no further seed. Runs that
    won nothing, or everything, are alike without being repeated: each of them counts. An instance
    without pass@k in either run, because its episodes were masked, is in neither.
    """
    better, worse = rows.get(claim.better, {}), rows.get(claim.worse, {})
    different: dict[object, str] = {}
    for seed in sorted(better.keys() & worse.keys(), key=int, reverse=True):
        pair = tuple(better[seed].successes), tuple(worse[seed].successes)
        alike = all(len(set(successes)) == 1 for successes in pair)
        different[seed if alike else pair] = seed
    pairs = []
    for seed in sorted(different.values(), key=int):
        first, second = better[seed].passes(claim.k), worse[seed].passes(claim.k)
        if len(first) != len(second):
            raise ValueError(f"arms of {len(first)} and {len(second)} instances cannot be paired")
        known = np.isfinite(first) & np.isfinite(second)
        if known.any():
            pairs.append((first[known], second[known]))
    return pairs
