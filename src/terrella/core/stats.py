"""Intervals that stand beside every figure, and bounds that hold at a stated confidence.

Wilson's interval keeps its coverage at 0 and at n, where the usual one collapses to a point; the
mean's is Student's, because five seeds are not a normal sample. What a certificate promises rests
on `mean_upper_bound`, which holds for every sample size.
    low, high = wilson(successes=7, n=10); low, high = mean_interval([0.4, 0.6, 0.5])
    mean_upper_bound([0.0, 0.0, 0.1], confidence=0.95)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

Z95 = 1.959963984540054
"""Two-sided 95% quantile of the normal distribution."""

CONFIDENCE = 0.95
"""Confidence of everything that a certificate promises, for each of its policies."""

# Two-sided 95% quantiles of Student's t for 1 to 10 degrees of freedom, where the series below is
# not good enough.
_T95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def wilson(successes: float, n: float) -> tuple[float, float]:
    """95% interval of a share of `n` trials; without trials nothing is known, so (0, 1).

    Values between 0 and 1 vary less than trials with the same mean, so that it holds for their sum,
    too. Weighted values count as `n = (sum of weights) ** 2 / sum of their squares`.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} trials")
    if n == 0:
        return 0.0, 1.0
    share, z2 = successes / n, Z95 * Z95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    # At 0 and at n the bound is exact; rounding must not move it.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def mean_interval(values: Sequence[float], *, least_variance: float = 0.0) -> tuple[float, float]:
    """95% interval of the mean of independent values; a single value says nothing about spread.

    (-inf, inf). Values that were rounded vary by `least_variance` even where they are equal.
    """
    n = len(values)
    if n == 0:
        raise ValueError("the mean of no values has no interval")
    if n == 1:
        return -math.inf, math.inf
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = student_t95(n - 1) * math.sqrt(max(variance, least_variance) / n)
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


def student_t_tail(t: float, degrees: int) -> float:
    """P(T > t) of Student's t, exact for whole degrees of freedom (Abramowitz and Stegun 26.7)."""
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom")
    angle = math.atan2(abs(t), math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    total, term = 0.0, cosine if odd else 1.0
    for step in range(1 + odd, degrees, 2):
        total += term
        term *= cosine * cosine * step / (step + 1)
    inside = 2.0 / math.pi * (angle + sine * total) if odd else sine * total
    tail = max(0.0, (1.0 - inside) / 2.0)
    return tail if t >= 0 else 1.0 - tail


def mean_upper_bound(values: Sequence[float], *, confidence: float) -> float:
    """Upper bound of the mean of independent values in [0, 1]; 1 without values.

    Hoeffding's and Bentkus's bounds, whichever is tighter: valid for every n, not only in the
    limit. Without an error it is 1 - (1 - confidence) ** (1 / n).
    """
    if not values:
        return 1.0
    n, total = len(values), math.fsum(values)
    low, high = total / n, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if mean_p_value(total, n, middle) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high


def mean_p_value(total: float, n: int, mean: float) -> float:
    """Bound on the chance that n values in [0, 1] sum to `total` or less if their mean is `mean`.

    A small value shows that the true mean is below `mean`.
    """
    hoeffding = math.exp(-n * kl_divergence(min(total / n, mean), mean))
    # A sum of 0.1 + 0.2 + 0.7 may come out a little above 1.
    return min(hoeffding, math.e * binomial_cdf(math.ceil(total - 1e-9), n, mean))


def kl_divergence(first: float, second: float) -> float:
    """Kullback-Leibler divergence of two coins."""
    parts = ((first, second), (1.0 - first, 1.0 - second))
    return sum(p * math.log(p / q) if q > 0 else math.inf for p, q in parts if p > 0)


def binomial_cdf(successes: int, n: int, chance: float) -> float:
    """P(X <= successes) of n trials."""
    if successes >= n or chance <= 0.0:
        return 1.0
    if chance >= 1.0 or successes < 0:
        return 0.0
    odds = math.log(chance) - math.log1p(-chance)
    term = n * math.log1p(-chance)
    terms = [term]
    for count in range(1, successes + 1):
        term += math.log((n - count + 1) / count) + odds
        terms.append(term)
    largest = max(terms)
    return min(1.0, math.exp(largest) * math.fsum(math.exp(each - largest) for each in terms))


def auc(scores: Iterable[float], outcomes: Iterable[float]) -> float | None:
    """The share of pairs of a success and a failure in which the success scores higher.

    Equal scores count half; None without a pair.
    """
    pairs = list(zip(scores, outcomes, strict=True))
    won = np.asarray([score for score, outcome in pairs if outcome >= 0.5])
    lost = np.asarray([score for score, outcome in pairs if outcome < 0.5])
    if not len(won) or not len(lost):
        return None
    higher = (won[:, None] > lost).mean() + (won[:, None] == lost).mean() / 2
    return float(higher)
