"""The risk section: do prediction sets hold what happens, and below which risk to imagine?

section = risk_section(model, calibration, held_out, world.verifier, step_error=0.03)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from terrella.core.predictive import PredictiveDistribution
from terrella.core.protocols import Verifier
from terrella.pipelines.certify.records import StepPredictions
from terrella.trust.horizon import mean_row
from terrella.trust.predictive import predicted_prob
from terrella.trust.risk import RiskModel, trusted_below

CURVE_POINTS = 20


def risk_section(
    model: RiskModel | None,
    calibration: StepPredictions,
    held_out: StepPredictions,
    verifier: Verifier,
    *,
    step_error: float,
) -> dict[str, Any]:
    """Coverage of the prediction sets on held-out instances, and the risk threshold."""
    counts = {"calibration": len(calibration.wrong), "held_out": len(held_out.wrong)}
    if model is None:
        return {**counts, "model": None, "threshold": None, "coverage": None}
    risks = model.risks(held_out.signals)
    threshold = trusted_below(model.risks(calibration.signals), calibration.wrong, error=step_error)
    trusted = risks <= (-1.0 if threshold is None else threshold)
    sizes = [
        _set_size(model, risk, distribution)
        for risk, distribution in zip(risks, held_out.distributions, strict=True)
    ]
    return {
        **counts,
        "model": {"weights": model.weights, "quantile": model.quantile, "level": model.level},
        "coverage": mean_row(_covered(model, risks, held_out, verifier)),
        "set_sizes": {str(n): sizes.count(n) / len(sizes) for n in sorted(set(sizes))},
        "threshold": threshold,
        "mean_risk": float(risks.mean()),
        "mean_wrong": float(held_out.wrong.mean()),
        "trusted_share": float(trusted.mean()),
        "trusted_wrong": mean_row(list(held_out.wrong[trusted])),
        "ordering": _auroc(risks, held_out.wrong > 0.5),
        "curve": _risk_curve(risks, held_out.wrong),
    }


def _covered(
    model: RiskModel, risks: np.ndarray, held_out: StepPredictions, verifier: Verifier
) -> list[float]:
    """For each held-out step, the true probability that its prediction set holds the result."""
    covered = []
    for risk, distribution, truth, query in zip(
        risks, held_out.distributions, held_out.truths, held_out.queries, strict=True
    ):
        before = query.situation.observation
        probs = [
            predicted_prob(distribution, result, before, verifier) for result in truth.predictions
        ]
        chances = zip(truth.chances, probs, strict=True)
        covered.append(sum(chance for chance, prob in chances if model.inside(risk, prob)))
    return covered


def _set_size(model: RiskModel, risk: float, distribution: PredictiveDistribution) -> int:
    """Predictions in the set of a step; with none of them the model is of no use there."""
    chances = distribution.chances
    return sum(model.inside(risk, chance / chances.sum()) for chance in chances)


def _risk_curve(risks: np.ndarray, wrong: np.ndarray) -> list[dict[str, float]]:
    """Error among the steps of lowest risk, by the share of steps that is accepted."""
    order = np.argsort(risks)
    points = range(1, CURVE_POINTS + 1)
    counts = [max(1, round(len(order) * point / CURVE_POINTS)) for point in points]
    return [
        {
            "share": n / len(order),
            "risk": float(risks[order][n - 1]),
            "wrong": float(wrong[order][:n].mean()),
        }
        for n in counts
    ]


def _auroc(risks: np.ndarray, wrong: np.ndarray) -> float | None:
    """Chance that a wrong step has a higher risk than a right one; None without both kinds."""
    if wrong.all() or not wrong.any():
        return None
    above = (risks[wrong][:, None] > risks[~wrong][None]).mean()
    return float(above + 0.5 * (risks[wrong][:, None] == risks[~wrong][None]).mean())
