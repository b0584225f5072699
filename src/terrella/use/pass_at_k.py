"""pass@k without bias, its interval over instances, and the paired difference of two agents on the same instances.

From n samples of an instance, c of them right, pass@k is 1 - C(n-c, k) / C(n, k): the mean over all choices of k of the
n samples, not the one choice that was drawn. Instances, not samples, are what an interval is over.
    pass_at_k([3, 0, 8], samples=8, k=4); bootstrap_mean(values); paired_difference(first, second)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrella.core.instances import POLICY_STREAM, stream

RESAMPLES = 2000
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its 95% bootstrap interval."""

    mean: float
    low: float
    high: float
    n: int


def pass_at_k(successes: Sequence[int], *, samples: int, k: int) -> FloatArray:
    """Per instance: the chance that k of its samples, chosen at random, hold a success. Needs k <= samples."""
    right = np.asarray(successes)
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {samples}")
    if right.size and (right.min() < 0 or right.max() > samples):
        raise ValueError(f"{right.min()} to {right.max()} successes of {samples} samples")
    # C(n-c, k) / C(n, k) as a product: no factorial ever overflows.
    wrong = (samples - right)[:, None] - np.arange(k)
    chances: FloatArray = 1.0 - np.prod(np.maximum(wrong, 0) / (samples - np.arange(k)), axis=1)
    return chances


def bootstrap_mean(values: Sequence[float] | FloatArray, *, seed: int = 0) -> Estimate:
    """The mean over instances and its 95% interval, by resampling instances."""
    found = np.asarray(values, dtype=np.float64)
    if not found.size:
        raise ValueError("the mean of no instances has no interval")
    means = _resampled(len(found), stream(POLICY_STREAM, seed)) @ found
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(mean=float(found.mean()), low=float(low), high=float(high), n=len(found))


def _resampled(size: int, rng: np.random.Generator) -> FloatArray:
    """How much each of `size` things weighs in each resample: [RESAMPLES, size]; a row adds up to 1."""
    weights: FloatArray = rng.multinomial(size, np.full(size, 1 / size), size=RESAMPLES) / size
    return weights


def paired_difference(first: FloatArray, second: FloatArray, *, seed: int = 0) -> Estimate:
    """Mean of first - second with its interval; [instances], or [seeds, instances] for agents trained several times.

    With several seeds both seeds and instances are resampled: the claim is about the method, not about these runs.
    """
    difference = np.atleast_2d(np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64))
    runs, instances = difference.shape
    rng = stream(POLICY_STREAM, seed)
    means = (_resampled(runs, rng) * (_resampled(instances, rng) @ difference.T)).sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(mean=float(difference.mean()), low=float(low), high=float(high), n=instances)
