"""Risk of a step from cheap signals, and prediction sets that hold what really happens, by split conformal prediction.

A logistic fit tells from what is known before the truth is (how probable the model found its answer, how far its
samples agree, how far the step lies from the data) how much of the truth a belief misses: its *risk*. A result then
scores `1 - (1 - risk) * (what imagination gives it)`; the conformal quantile of the scores of real steps makes sets of
results that hold what happens at the promised rate, however poor the fit.
    risk = fit_risk(signals, wrong, held, level=0.9); risk.risks(new_signals); risk.inside(risk_of_step, held_of_result)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import ConfigError
from terrella.core.stats import wilson
from terrella.trust.beliefs import Belief, Believer, Question
from terrella.trust.nearness import NearestData

SIGNALS = ("doubt", "missing", "disagreement", "distance")
FLOOR = 1e-6
"""Signals are compared by their logarithms; below this they are all the same."""
FIT_SHARE = 0.3
"""Of the calibration steps: for the fit. The others are for the quantile, which must not have seen the fit's data."""
RIDGE = 1e-4
"""Per step; keeps weights finite when all steps are right, or a signal never varies."""
Array = NDArray[np.float64]


def signals(beliefs: Sequence[Belief], distances: Array) -> Array:
    """[N, 4]: what can be known of each belief before the truth is."""
    rows = [(1.0 - max(b.chances, default=0.0), b.missing, b.disagreement) for b in beliefs]
    return np.column_stack([np.array(rows).reshape(-1, 3), distances])


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
        """Share of the truth that each belief is expected to miss."""
        return _logistic(_features(values) @ np.array(self.weights))

    def inside(self, risk: float, held: float) -> bool:
        """Whether a result, to which imagination gives `held`, lies in the prediction set of a step of this risk."""
        return score(risk, held) <= self.quantile + 1e-12


def score(risk: float, held: float) -> float:
    """How little a result was expected: 0 fully, 1 not at all."""
    return 1.0 - (1.0 - risk) * held


def least_calibration(level: float) -> int:
    """Fewest steps with which the conformal quantile exists at all."""
    return math.ceil(round(level / (1.0 - level), 9))


def fit_risk(values: Array, wrong: Array, held: Array, *, level: float) -> RiskModel:
    """Fit on the first part, take the quantile on the rest; rows must be independent (one step per instance).

    `wrong` is the share of the truth that each belief misses, `held` what it gives to the result that came.
    """
    cut = int(len(values) * FIT_SHARE)
    n = len(values) - cut
    if n < least_calibration(level):
        raise ConfigError("risk", f"{n} steps cannot calibrate a level of {level:g}", "certify on more instances")
    weights = _fit_logistic(_features(values[:cut]), wrong[:cut])
    risks = _logistic(_features(values[cut:]) @ weights)
    scores = np.sort(1.0 - (1.0 - risks) * held[cut:])
    place = math.ceil((n + 1) * level) - 1
    return RiskModel(tuple(map(float, weights)), float(scores[place]), level)


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
    """The largest risk such that, among the steps at or below it, the error stays under `error` with 95% confidence.

    Thresholds are tried from the safest quarter on, and the first that fails ends it: trying many costs no confidence.
    """
    order = np.argsort(risks)
    mistakes, first = np.cumsum(wrong[order]), max(least_trusted(error), len(order) // 4)
    best = None
    for count in sorted({*range(first, len(order), max(1, len(order) // 50)), len(order)}):
        if count < first or wilson(min(count, math.ceil(mistakes[count - 1] - 1e-9)), count)[1] > error:
            break
        best = float(risks[order][count - 1])
    return best


def least_trusted(error: float) -> int:
    """Fewest faultless steps that show an error below this."""
    return next(n for n in range(1, 1_000_000) if wilson(0, n)[1] <= error)


class Assessor:
    """A model with the calibrated risk of what it says."""

    def __init__(self, model: Believer, data: NearestData, risk: RiskModel | None) -> None:
        """Without a calibrated risk (not certified) every step is a full risk."""
        self.model, self.data, self.risk = model, data, risk

    def assess(self, questions: Sequence[Question]) -> list[tuple[Belief, float]]:
        """A belief and its risk for each question."""
        return self.rate(questions, self.model.believe(questions))

    def rate(self, questions: Sequence[Question], beliefs: Sequence[Belief]) -> list[tuple[Belief, float]]:
        """Beliefs that are already there, with their risks."""
        if self.risk is None:
            return [(belief, 1.0) for belief in beliefs]
        pairs = [(question.situation.observation, question.action) for question in questions]
        values = signals(beliefs, self.data.look_up(pairs)[0])
        return list(zip(beliefs, map(float, self.risk.risks(values)), strict=True))
