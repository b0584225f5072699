"""Intervals that stand beside every figure: 95% for a share and for a mean.

Wilson's interval keeps its coverage at 0 and at n, where the usual one collapses to a point; the
mean's is Student's, because five seeds are not a normal sample.
    low, high = wilson(successes=7, n=10); low, high = mean_interval([0.4, 0.6, 0.5])
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959963984540054
"""Two-sided 95% quantile of the normal distribution."""

# Two-sided 95% quantiles of Student's t for 1 to 10 degrees of freedom, where the series below is
# not good enough.
_T95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95% interval of a share of `n` trials; without trials nothing is known, so (0, 1)."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} trials")
    if n == 0:
        return 0.0, 1.0
    share, z2 = successes / n, Z95 * Z95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    # At 0 and at n the bound is exact; rounding must not move it.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of the mean of independent values; a single value says nothing about spread.

    (-inf, inf).
    """
    n = len(values)
    if n == 0:
        raise ValueError("the mean of no values has no interval")
    if n == 1:
        return -math.inf, math.inf
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = student_t95(n - 1) * math.sqrt(variance / n)
    return mean - half, mean + half


def student_t95(degrees: int) -> float:
    """Two-sided 95% quantile of Student's t, to four digits (Cornish-Fisher beyond ten degrees)."""
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = Z95
    first = (z**3 + z) / (4 * degrees)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * degrees**4)
    return z + first + second + third + fourth
