"""Risk of a predicted step from cheap signals, calibrated by split conformal prediction.

The *risk* of a step is the share of the truth that the prediction is expected to miss. A logistic
regression estimates it from what is known in advance: how probable the model found its answer, how
far its samples agree, and how far the step is from the training data. The nonconformity score of a
result is `1 - (1 - risk) * predicted_prob`. The conformal quantile of the scores of real steps
gives prediction sets that contain the real result at the promised rate, however poor the fit.
    model = fit_risk(signals, wrong, probs, level=0.9)
    model.risks(new_signals); model.inside(risk_of_step, prob_of_result)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import ConfigError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import WorldModel
from terrella.core.stats import wilson
from terrella.trust.nearness import NearestData

SIGNALS = ("doubt", "missing", "disagreement", "distance")
FLOOR = 1e-6
"""Signals are compared on a log scale; all values below this count as equal."""
FIT_SHARE = 0.3
"""Share of the calibration steps that is used for the fit.

The rest is used for the quantile, which must not be computed on the data of the fit.
"""
RIDGE = 1e-4
"""Per step; keeps the weights finite if all steps are right or a signal is constant."""
Array = NDArray[np.float64]


def signals(distributions: Sequence[PredictiveDistribution], distances: Array) -> Array:
    """The `SIGNALS` of each distribution, shape [N, 4]: known before the real result is."""
    values = [(1.0 - max(d.chances, default=0.0), d.missing, d.disagreement) for d in distributions]
    return np.column_stack([np.array(values).reshape(-1, 3), distances])


def _features(values: Array) -> Array:
    return np.column_stack([np.ones(len(values)), np.log(values + FLOOR) / -math.log(FLOOR)])


def _logistic(numbers: Array) -> Array:
    squashed: Array = 1.0 / (1.0 + np.exp(-np.clip(numbers, -30.0, 30.0)))
    return squashed


@dataclass(frozen=True)
class RiskModel:
    """Weights of the signals, and the conformal quantile of the scores."""

    weights: tuple[float, ...]
    quantile: float
    level: float

    def risks(self, values: Array) -> Array:
        """Share of the truth that each distribution is expected to miss."""
        return _logistic(_features(values) @ np.array(self.weights))

    def inside(self, risk: float, prob: float) -> bool:
        """Whether a result of this predicted probability is in the prediction set of the step."""
        return score(risk, prob) <= self.quantile + 1e-12


def score(risk: float, prob: float) -> float:
    """Nonconformity score of a result: 0 if fully expected, 1 if not expected at all."""
    return 1.0 - (1.0 - risk) * prob


def least_calibration(level: float) -> int:
    """Minimum number of calibration steps for which the conformal quantile exists."""
    return math.ceil(round(level / (1.0 - level), 9))


def fit_risk(values: Array, wrong: Array, probs: Array, *, level: float) -> RiskModel:
    """Fit the risk on the first steps and compute the conformal quantile on the rest.

    Steps must be independent (one step per instance). `wrong` is the share of the truth that each
    distribution misses, `probs` the probability that it gives to the real result.
    """
    cut = int(len(values) * FIT_SHARE)
    n = len(values) - cut
    if n < least_calibration(level):
        raise ConfigError(
            "risk", f"{n} steps cannot calibrate a level of {level:g}", "certify on more instances"
        )
    weights = _fit_logistic(_features(values[:cut]), wrong[:cut])
    risks = _logistic(_features(values[cut:]) @ weights)
    scores = np.sort(1.0 - (1.0 - risks) * probs[cut:])
    index = math.ceil((n + 1) * level) - 1
    return RiskModel(tuple(map(float, weights)), float(scores[index]), level)


def _fit_logistic(features: Array, targets: Array) -> Array:
    """Newton's method on the cross-entropy of targets in [0, 1], with a ridge."""
    weights, ridge = np.zeros(features.shape[1]), RIDGE * len(features) * np.eye(features.shape[1])
    for _ in range(50):
        expected = _logistic(features @ weights)
        slope = features.T @ (targets - expected) - ridge @ weights
        bend = (features * (expected * (1.0 - expected))[:, None]).T @ features + ridge
        change = np.linalg.solve(bend, slope)
        weights = weights + change
        if np.abs(change).max() < 1e-9:
            break
    return weights


def trusted_below(risks: Array, wrong: Array, *, error: float) -> float | None:
    """Largest risk at or below which the error is under `error` with 95% confidence.

    Thresholds are tried in increasing order, starting with the safest quarter of the steps, and the
    first failure ends the search. Testing in this fixed order needs no correction for multiple
    tests. None if even the first threshold fails.
    """
    order = np.argsort(risks)
    mistakes, first = np.cumsum(wrong[order]), max(least_trusted(error), len(order) // 4)
    best = None
    for count in sorted({*range(first, len(order), max(1, len(order) // 50)), len(order)}):
        if (
            count < first
            or wilson(min(count, math.ceil(mistakes[count - 1] - 1e-9)), count)[1] > error
        ):
            break
        best = float(risks[order][count - 1])
    return best


def least_trusted(error: float) -> int:
    """Minimum number of steps without a mistake that shows an error of at most `error`."""
    return next(n for n in range(1, 1_000_000) if wilson(0, n)[1] <= error)


class RiskEstimator:
    """A world model together with the calibrated risk of its predictions."""

    def __init__(self, model: WorldModel, data: NearestData, risk: RiskModel | None) -> None:
        """Without a calibrated risk (a model that is not certified) every step has risk 1."""
        self.model, self.data, self.risk = model, data, risk

    def assess(self, queries: Sequence[Query]) -> list[tuple[PredictiveDistribution, float]]:
        """Predict each query; return the distributions with their risks."""
        return self.rate(queries, self.model.predict(queries))

    def rate(
        self, queries: Sequence[Query], distributions: Sequence[PredictiveDistribution]
    ) -> list[tuple[PredictiveDistribution, float]]:
        """Attach risks to distributions that were already predicted."""
        if self.risk is None:
            return [(distribution, 1.0) for distribution in distributions]
        pairs = [(query.situation.observation, query.action) for query in queries]
        values = signals(distributions, self.data.look_up(pairs)[0])
        return list(zip(distributions, map(float, self.risk.risks(values)), strict=True))
