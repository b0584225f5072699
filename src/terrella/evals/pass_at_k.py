"""Unbiased pass@k, intervals over instances, and paired differences of two agents.

For n samples of an instance, c of them correct, pass@k is 1 - C(n-c, k) / C(n, k): the mean over
all choices of k of the n samples. Intervals are over instances, not samples. Where all instances
have one value, resampling shows no spread: a share that is 0 or 1 everywhere has Wilson's interval,
anything else has none.
Masked samples are in no estimate: an instance with fewer than k judged samples has no pass@k.
    pass_at_k([3, 0, 8], samples=8, k=4); share_mean(values); paired_difference(first, second)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from terrella.core.metric import Metric
from terrella.core.seeds import POLICY_STREAM, stream
from terrella.core.stats import wilson

RESAMPLES = 2000
FloatArray = NDArray[np.float64]


def pass_at_k(successes: Sequence[int], *, samples: int, k: int) -> FloatArray:
    """Probability, per instance, that k of its samples contain a success. Needs k <= samples."""
    correct = np.asarray(successes)
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {samples}")
    if correct.size and (correct.min() < 0 or correct.max() > samples):
        raise ValueError(f"{correct.min()} to {correct.max()} successes of {samples} samples")
    # C(n-c, k) / C(n, k) as a product, so that no factorial overflows.
    wrong = (samples - correct)[:, None] - np.arange(k)
    chances: FloatArray = 1.0 - np.prod(np.maximum(wrong, 0) / (samples - np.arange(k)), axis=1)
    return chances


def powers_of_two(largest: int) -> list[int]:
    return [2**power for power in range(largest.bit_length()) if 2**power <= largest]


def pass_values(successes: Sequence[int], judged: Sequence[int], k: int) -> list[float | None]:
    """pass@k by instance; None where fewer than k samples were judged."""
    return [
        float(pass_at_k([won], samples=n, k=k)[0]) if n >= k else None
        for won, n in zip(successes, judged, strict=True)
    ]


def pass_metrics(
    successes: Sequence[int], judged: Sequence[int], samples: int
) -> dict[str, Metric]:
    """pass@k for k = 1, 2, 4, ...; instances with fewer than k judged samples are left out."""
    metrics = {}
    for k in powers_of_two(samples):
        values = pass_values(successes, judged, k)
        known = [value for value in values if value is not None]
        if known:
            left_out = len(values) - len(known)
            metrics[str(k)] = dataclasses.replace(share_mean(known), masked=left_out)
    return metrics


def bootstrap_mean(values: Sequence[float] | FloatArray, *, seed: int = 0) -> Metric:
    """The mean over instances and its 95% interval, by resampling instances.

    There is no interval where all values are equal.
    """
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        raise ValueError("there are no instances: their mean has no interval")
    mean, n = float(array.mean()), len(array)
    if np.ptp(array) == 0.0:
        return Metric(mean=mean, low=None, high=None, n=n)
    means = _resampled(n, stream(POLICY_STREAM, seed)) @ array
    low, high = np.quantile(means, [0.025, 0.975])
    return Metric(mean=mean, low=float(low), high=float(high), n=n)


def share_mean(values: Sequence[float] | FloatArray, *, seed: int = 0) -> Metric:
    """`bootstrap_mean` of values in [0, 1]; if all are 0, or all are 1, with Wilson's interval."""
    metric = bootstrap_mean(values, seed=seed)
    if metric.low is not None or metric.n == 1 or metric.mean not in (0.0, 1.0):
        return metric
    low, high = wilson(round(metric.mean) * metric.n, metric.n)
    return dataclasses.replace(metric, low=low, high=high)


def _resampled(size: int, rng: np.random.Generator) -> FloatArray:
    """Bootstrap weights [RESAMPLES, size]; each row sums to 1."""
    weights: FloatArray = rng.multinomial(size, np.full(size, 1 / size), size=RESAMPLES) / size
    return weights


def paired_difference(first: FloatArray, second: FloatArray, *, seed: int = 0) -> Metric:
    """Mean of `first - second` over the same instances, with its interval over instances.

    It is about these two agents. A claim about methods needs several seeds: `core/claims.py`.
    """
    return bootstrap_mean(np.asarray(first, np.float64) - np.asarray(second, np.float64), seed=seed)
