"""The risk section: do prediction sets hold what happens, and below which risk to imagine?

section = risk_section(
    model, calibration, held_out, verifier, step_error=0.03, policies=["expert", "random"]
)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from terrella.core.predictive import PredictiveDistribution
from terrella.core.protocols import Verifier
from terrella.core.stats import auc, wilson
from terrella.core.types import Observation, Prediction
from terrella.pipelines.certify.records import StepPredictions
from terrella.trust.horizon import mean_row
from terrella.trust.predictive import matches, predicted_prob
from terrella.trust.risk import (
    RiskModel,
    SharedThreshold,
    by_policy,
    calibration_rows,
    sample_of_steps,
    trusted_for_all,
)

CURVE_POINTS = 20
WHOLE = "all"
"""Size of a set that holds every possible result: it is never wrong, and says nothing."""


def risk_section(
    model: RiskModel | None,
    calibration: StepPredictions,
    held_out: StepPredictions,
    verifier: Verifier,
    *,
    step_error: float,
    policies: list[str],
    seed: int = 0,
) -> dict[str, Any]:
    """Coverage of the prediction sets on held-out instances, and the risk threshold.

    Coverage is that of a random step of a random episode. What is said of trusted steps is said of
    steps: each counts as many as its episode has.
    """
    counts = {"calibration": calibration.distinct, "held_out": held_out.distinct}
    if model is None:
        return {**counts, "model": None, "threshold": None, "coverage": None}
    risks = model.risks(held_out.signals)
    threshold = risk_threshold(model, calibration, step_error, policies, seed=seed)
    trusted = risks <= (-1.0 if threshold.value is None else threshold.value)
    sizes, covered = prediction_sets(model, risks, held_out, verifier)
    return {
        **counts,
        "fitted_on": calibration_rows(calibration.distinct).start,
        "model": {"weights": model.weights, "quantile": model.quantile, "level": model.level},
        "coverage": _instance_row(np.asarray(covered), held_out.instances),
        "empty_sets": sizes.count("0") / len(sizes),
        "set_sizes": {size: sizes.count(size) / len(sizes) for size in sorted(set(sizes))},
        "by_policy": {
            name: _policy_row(held_out.policies == number, covered, held_out, trusted)
            for number, name in enumerate(policies)
        },
        "threshold": threshold.value,
        "no_threshold": list(threshold.reasons),
        "threshold_steps": dict(zip(policies, threshold.steps, strict=True)),
        "mean_risk": float(risks.mean()),
        "mean_wrong": float(held_out.wrong.mean()),
        **_trusted_rows(held_out, trusted, np.ones(len(trusted), bool)),
        "ordering": auc(risks, held_out.wrong > 0.5),
        "curve": _risk_curve(risks, held_out.wrong, held_out.lengths),
    }


def risk_threshold(
    model: RiskModel,
    calibration: StepPredictions,
    step_error: float,
    policies: Sequence[str],
    *,
    seed: int = 0,
) -> SharedThreshold:
    """The risk below which to imagine, from the calibration steps that fitted nothing.

    The gate spends the error step by step, so the steps are thinned to a sample of steps.
    """
    count = len(calibration.wrong)
    rest = calibration_rows(count, len(set(calibration.policies.tolist())))
    groups = by_policy(count, calibration.policies.tolist())
    return trusted_for_all(
        model.risks(calibration.signals[rest]),
        calibration.wrong[rest],
        sample_of_steps(calibration.lengths[rest], groups, seed=seed),
        policies,
        error=step_error,
    )


def _instance_row(values: np.ndarray, instances: list[str]) -> dict[str, float | int | None]:
    """A mean over instances: the steps of the policies in one instance are averaged first."""
    by_name: dict[str, list[float]] = {}
    for name, value in zip(instances, values, strict=True):
        by_name.setdefault(name, []).append(float(value))
    return mean_row([sum(each) / len(each) for each in by_name.values()])


def _policy_row(
    chosen: np.ndarray, covered: list[float], held_out: StepPredictions, trusted: np.ndarray
) -> dict[str, Any]:
    return {
        "coverage": mean_row(list(np.asarray(covered)[chosen])),
        **_trusted_rows(held_out, trusted, chosen),
    }


def _trusted_rows(
    held_out: StepPredictions, trusted: np.ndarray, chosen: np.ndarray
) -> dict[str, Any]:
    """Which share of the chosen steps is trusted, and how often those are wrong."""
    lengths, both = held_out.lengths, chosen & trusted
    names = np.asarray(held_out.instances)
    return {
        "trusted_share": float(lengths[both].sum() / lengths[chosen].sum())
        if chosen.any()
        else None,
        "trusted_wrong": step_mean_row(held_out.wrong[both], lengths[both], names[both]),
    }


def step_mean_row(
    values: np.ndarray, lengths: np.ndarray, instances: np.ndarray
) -> dict[str, float | int | None]:
    """The mean over steps of values that were measured at one step of each episode.

    A value counts as many as its episode has steps. The interval is Wilson's for as many instances,
    which are independent, as their weights are worth.
    """
    _, instance = np.unique(instances, return_inverse=True)
    weights = np.bincount(instance, lengths)
    if not weights.size:
        return mean_row([])
    mean = float((lengths * values).sum() / weights.sum())
    worth = float(weights.sum() ** 2 / (weights**2).sum())
    low, high = wilson(min(1.0, max(0.0, mean)) * worth, worth)
    return {"mean": mean, "low": low, "high": high, "n": len(weights)}


def prediction_sets(
    model: RiskModel, risks: np.ndarray, held_out: StepPredictions, verifier: Verifier
) -> tuple[list[str], list[float]]:
    """For each held-out step the size of its set, and the true chance that it holds the result."""
    sizes, covered = [], []
    for risk, distribution, truth, query in zip(
        risks, held_out.distributions, held_out.truths, held_out.queries, strict=True
    ):
        before = query.situation.observation
        chosen = prediction_set(model, risk, distribution, before, verifier)
        whole = model.inside(risk, 0.0)
        sizes.append(WHOLE if whole else str(len(chosen)))
        inside = [
            whole or _holds(model, risk, distribution, chosen, result, before, verifier)
            for result in truth.predictions
        ]
        chances = zip(truth.chances, inside, strict=True)
        covered.append(float(sum(chance for chance, held in chances if held)))
    return sizes, covered


def prediction_set(
    model: RiskModel,
    risk: float,
    distribution: PredictiveDistribution,
    before: Observation,
    verifier: Verifier,
) -> list[Prediction]:
    """The predictions that the set of a step holds.

    The most likely one is always among them: a set that is empty although the model has an answer
    would meet its rate by saying nothing. Without a readable prediction it is empty.
    """
    return [
        predicted
        for place, predicted in enumerate(distribution.predictions)
        if place == 0
        or model.inside(risk, predicted_prob(distribution, predicted, before, verifier))
    ]


def _holds(
    model: RiskModel,
    risk: float,
    distribution: PredictiveDistribution,
    chosen: list[Prediction],
    result: Prediction,
    before: Observation,
    verifier: Verifier,
) -> bool:
    """Whether a set holds a result; an empty set holds none."""
    if not chosen:
        return False
    if model.inside(risk, predicted_prob(distribution, result, before, verifier)):
        return True
    return any(matches(predicted, result, before, verifier) == 1.0 for predicted in chosen)


def _risk_curve(
    risks: np.ndarray, wrong: np.ndarray, lengths: np.ndarray
) -> list[dict[str, float]]:
    """Error among the steps of lowest risk, by the share of all steps that is accepted."""
    order = np.argsort(risks)
    steps, mistakes = np.cumsum(lengths[order]), np.cumsum((lengths * wrong)[order])
    points = range(1, CURVE_POINTS + 1)
    counts = [max(1, round(len(order) * point / CURVE_POINTS)) for point in points]
    return [
        {
            "share": float(steps[n - 1] / steps[-1]),
            "risk": float(risks[order][n - 1]),
            "wrong": float(mistakes[n - 1] / steps[n - 1]),
        }
        for n in counts
    ]
