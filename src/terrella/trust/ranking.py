"""Whether a world model ranks policies in the same order as the real world.

Rank correlations (Spearman, Kendall) with bootstrap intervals, and the inverted pairs. All policies
play the same instances, so the intervals come from resampling instances.
    names, real, imagined = ["random", "expert"], [[0, 1], [1, 1]], [[0, 0], [1, 1]]
    compare_rankings(names, real, imagined, seed=0)["spearman"]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrella.core.stats import mean_interval

RESAMPLES = 1000
Array = NDArray[np.float64]


def ranks(values: Array) -> Array:
    """Ranks from 1; equal values share their mean rank."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    shared: Array = (ends - (count - 1) / 2)[index].astype(float)
    return shared


def spearman(first: Array, second: Array) -> float:
    """Rank correlation; NaN if either side is constant."""
    a, b = ranks(first), ranks(second)
    if a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def pearson(first: Array, second: Array) -> float:
    """Linear correlation; NaN if either side is constant."""
    if first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def kendall(first: Array, second: Array) -> float:
    """Kendall's tau-b; NaN if either side is constant."""
    upper = np.triu_indices(len(first), 1)
    a = np.sign(first[:, None] - first[None])[upper]
    b = np.sign(second[:, None] - second[None])[upper]
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / scale) if scale else float("nan")


def compare_rankings(
    names: Sequence[str], real: ArrayLike, imagined: ArrayLike, *, seed: int
) -> dict[str, Any]:
    """Compare returns of shape [policy, instance] on the same real and imagined instances."""
    real, imagined = np.asarray(real, float), np.asarray(imagined, float)
    policies = [
        {
            "policy": name,
            "real": float(r.mean()),
            "real_interval": list(mean_interval(list(r))),
            "imagined": float(i.mean()),
            "imagined_interval": list(mean_interval(list(i))),
            "real_by_instance": r.tolist(),
            "imagined_by_instance": i.tolist(),
        }
        for name, r, i in zip(names, real, imagined, strict=True)
    ]
    return {
        "policies": policies,
        "instances": real.shape[1],
        "pearson": _with_interval(pearson, real, imagined, seed),
        "spearman": _with_interval(spearman, real, imagined, seed),
        "kendall": _with_interval(kendall, real, imagined, seed),
        "mean_absolute_error": float(np.abs(real.mean(1) - imagined.mean(1)).mean()),
        "inversions": _inversions(names, real, imagined),
        "pairs": len(names) * (len(names) - 1) // 2,
    }


def _with_interval(
    measure: Callable[[Array, Array], float], real: Array, imagined: Array, seed: int
) -> dict[str, Any]:
    rng, n = np.random.default_rng(seed), real.shape[1]
    drawn = []
    for _ in range(RESAMPLES):
        sample = rng.integers(n, size=n)
        drawn.append(measure(real[:, sample].mean(1), imagined[:, sample].mean(1)))
    finite = [value for value in drawn if np.isfinite(value)]
    value = measure(real.mean(1), imagined.mean(1))
    if not finite or not np.isfinite(value):
        return {"value": None, "low": None, "high": None}
    low, high = np.quantile(finite, [0.025, 0.975])
    return {"value": value, "low": float(low), "high": float(high)}


def _inversions(names: Sequence[str], real: Array, imagined: Array) -> list[dict[str, Any]]:
    """Pairs that the model ranks the other way round, and if the real difference is significant."""
    inversions = []
    for a in range(len(names)):
        for b in range(a + 1, len(names)):
            true, imagined_gap = real[a] - real[b], imagined[a] - imagined[b]
            if true.mean() * imagined_gap.mean() < 0:
                low, high = mean_interval(list(true))
                better, worse = (names[a], names[b]) if true.mean() > 0 else (names[b], names[a])
                inversions.append(
                    {
                        "better": better,
                        "worse": worse,
                        "real_difference": abs(float(true.mean())),
                        "imagined_difference": -abs(float(imagined_gap.mean())),
                        "beyond_chance": bool(low > 0 or high < 0),
                    }
                )
    return inversions
