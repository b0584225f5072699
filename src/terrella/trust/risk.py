"""Risk of a predicted step from cheap signals, calibrated by split conformal prediction.

The *risk* of a step is the share of the truth that the prediction is expected to miss. A logistic
regression estimates it from what is known in advance: how probable the model found its answer, how
far its samples agree, and how far the step is from the training data. The nonconformity score of a
result is `1 - (1 - risk) * predicted_prob`. A quantile of the scores of real steps gives prediction
sets that hold the real result at the promised rate, however poor the fit.

Two things break exchangeability, and both are met. One calibration may be unlucky: the quantile is
chosen so that the rate holds with a stated confidence, not on average over calibrations. Agents act
differently: steps are calibrated for each policy apart, and the worst policy decides, so that the
promise holds for each of them at the stated confidence.

Calibration has one step per episode. Prediction sets hold their rate for such a step: a random step
of a random episode. The threshold is for every step that is imagined, so it is tested on a sample
of steps (`sample_of_steps`), in which a long episode counts as often as it has steps.
    model = fit_risk(signals, wrong, probs, policies, level=0.9)
    model.risks(new_signals); model.inside(risk_of_step, prob_of_result)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import ConfigError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import WorldModel
from terrella.core.seeds import THINNING_STREAM, stream
from terrella.core.stats import CONFIDENCE, binomial_cdf, kl_divergence, mean_p_value
from terrella.trust.nearness import NearestData

SIGNALS = ("doubt", "missing", "disagreement", "distance")
FLOOR = 1e-6
"""Signals are compared on a log scale; all values below this count as equal."""
FIT_SHARE = 0.15
"""Share of the calibration steps that is used for the fit.

Only the rest (`calibration_rows`) may be used for the quantile and for the threshold. The fit has
five weights; the threshold needs the steps more.
"""
FIRST_ERROR = 0.1
"""The first threshold is tested on as many steps as show `step_error` at this share of it.

With fewer, hardly any model passes: each prediction misses a little of the truth, and a small
sample shows the promise only without any mistake.
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


def calibration_rows(count: int, policies: int = 1) -> slice:
    """The steps that fitted nothing; all steps of an instance are on one side."""
    instances = count // policies
    return slice(int(instances * FIT_SHARE) * policies, count)


def least_calibration(level: float) -> int:
    """Minimum number of calibration steps that can show a level at the confidence `CONFIDENCE`."""
    return math.ceil(round(math.log(1.0 - CONFIDENCE) / math.log(level), 9))


def conformal_rank(n: int, level: float) -> int | None:
    """Which of n sorted scores covers new steps at `level`, by `CONFIDENCE`; None if none does.

    The coverage of the k-th of n scores is at least `level` unless k or more of them lie below the
    true quantile, a binomial event. Split conformal's usual rank holds on average only: half of all
    calibrations fall short of it.
    """
    for rank in range(math.ceil(n * level), n + 1):
        if 1.0 - binomial_cdf(rank - 1, n, level) <= 1.0 - CONFIDENCE:
            return rank
    return None


def fit_risk(
    values: Array,
    wrong: Array,
    probs: Array,
    policies: Sequence[int] | None = None,
    *,
    level: float,
) -> RiskModel:
    """Fit the risk on the first steps and compute the conformal quantile on the rest.

    The steps of one policy must be independent (one step per instance); all policies take a step
    in the same instances, one after the other. `wrong` is the share of the truth that each
    distribution misses, `probs` the probability that it gives to the real result, `policies` the
    number of the policy that took each step (one policy unless given).
    """
    rest = calibration_rows(len(values), len(set(policies or [0])))
    weights = _fit_logistic(_features(values[: rest.start]), wrong[: rest.start])
    risks = _logistic(_features(values[rest]) @ weights)
    scores = 1.0 - (1.0 - risks) * probs[rest]
    groups = by_policy(len(values), policies)
    quantile = max(_quantile(scores[group], level) for group in groups)
    return RiskModel(tuple(map(float, weights)), quantile, level)


def by_policy(count: int, policies: Sequence[int] | None) -> list[NDArray[np.intp]]:
    """The calibration rows of each policy, numbered from the first one that fitted nothing."""
    labels = np.zeros(count, int) if policies is None else np.asarray(policies, int)
    names = sorted(set(labels.tolist()))
    rest = labels[calibration_rows(count, max(1, len(names)))]
    return [np.flatnonzero(rest == name) for name in names]


def _quantile(scores: Array, level: float) -> float:
    rank = conformal_rank(len(scores), level)
    if rank is None:
        least = least_calibration(level)
        raise ConfigError(
            "risk",
            f"{len(scores)} steps of a policy cannot calibrate a level of {level:g}: {least} can",
            "certify on more instances, or for fewer policies",
        )
    return float(np.sort(scores)[rank - 1])


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
    """Largest risk at or below which the error is under `error`, by `CONFIDENCE`.

    Thresholds are tried in increasing order, starting with the safest quarter of the steps (more if
    that is too few to show anything, see `FIRST_ERROR`), and the first failure ends the search.
    Testing in this fixed order needs no correction for multiple tests. None if even the first
    threshold fails. Steps of equal risk are tested together: a threshold cannot keep some of them
    out.
    """
    order = np.argsort(risks)
    ordered, mistakes = risks[order], np.cumsum(wrong[order])
    fewest = least_trusted(error, found=FIRST_ERROR * error)
    first = min(len(order), max(fewest, len(order) // 4))
    tried = {*range(first, len(order), max(1, len(order) // 50)), len(order)}
    ends = np.searchsorted(ordered, ordered, side="right")
    best = None
    for count in sorted({int(ends[each - 1]) for each in tried if each}):
        if count < first or mean_p_value(mistakes[count - 1], count, error) > 1.0 - CONFIDENCE:
            break
        best = float(ordered[count - 1])
    return best


def sample_of_steps(
    lengths: NDArray[np.int_], groups: Sequence[NDArray[np.intp]], *, seed: int
) -> list[NDArray[np.intp]]:
    """The rows of each group that are a sample of steps, not of episodes.

    A row is a random step of an episode, so steps of long episodes are too rare among rows. A row
    is kept with the chance `length / longest`, where `longest` is that of its group; kept rows are
    then drawn from all steps alike. `lengths` are those of the rows' episodes.
    """
    drawn = stream(THINNING_STREAM, seed).random(len(lengths))
    return [
        group[drawn[group] * lengths[group].max(initial=0) < lengths[group]] for group in groups
    ]


class SharedThreshold(NamedTuple):
    """A threshold that holds for every policy; None, and why, if there is none."""

    value: float | None
    reasons: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    """How many steps of each policy tested it."""


def trusted_for_all(
    risks: Array,
    wrong: Array,
    groups: Sequence[NDArray[np.intp]],
    names: Sequence[str],
    *,
    error: float,
) -> SharedThreshold:
    """The threshold that holds for the steps of each policy at the certificate's confidence.

    The lowest of their thresholds may lie below all that were tried for another policy, whose
    safest steps may be the wrong ones. So each policy is tested again at it.
    """
    found = [trusted_below(risks[group], wrong[group], error=error) for group in groups]
    known = [threshold for threshold in found if threshold is not None]
    if not known or len(known) < len(found):
        pairs = zip(found, groups, names, strict=True)
        failed = [_not_shown(name, wrong[group], error) for t, group, name in pairs if t is None]
        return SharedThreshold(None, tuple(failed), tuple(map(len, groups)))
    lowest = min(known)
    where = f" up to {lowest:.3g}, the highest risk shown for {names[found.index(lowest)]}"
    below = [wrong[group][risks[group] <= lowest] for group in groups]
    failed = [
        _not_shown(name, mistakes, error, where)
        for name, mistakes in zip(names, below, strict=True)
        if not _shows(mistakes, error)
    ]
    value = None if failed else lowest
    return SharedThreshold(value, tuple(failed), tuple(map(len, groups)))


def _shows(wrong: Array, error: float) -> bool:
    """Whether these steps show that such steps are wrong less often than `error`."""
    if len(wrong) < least_trusted(error):
        return False
    return mean_p_value(float(wrong.sum()), len(wrong), error) <= 1.0 - CONFIDENCE


def _not_shown(name: str, wrong: Array, error: float, where: str = "") -> str:
    """Why a policy has no threshold, and how many steps it would take if that is the reason."""
    count = len(wrong)
    reason = f"no steps of {name} can be shown to be wrong less often than {error:g}{where}"
    if count < least_trusted(error):
        least = least_trusted(error)
        return f"{reason}: {count} steps test it, {least} can: certify on more instances"
    found = float(wrong.mean())
    tested = f"{reason}: {found:.1%} of the {count} steps that test it are wrong"
    needed = least_trusted(error, found=found) if found < error else 0
    if needed <= count:
        return tested
    return f"{tested}, and it takes {needed} such steps: certify on more instances"


def least_trusted(error: float, *, found: float = 0.0) -> int:
    """Fewest steps that show an error of at most `error`, if they have the error `found`."""
    return math.ceil(round(-math.log(1.0 - CONFIDENCE) / kl_divergence(found, error), 9))


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
