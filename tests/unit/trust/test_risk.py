"""Conformal sets keep their promise, risk orders steps, and thin data is refused."""

import numpy as np
import pytest

from terrella.core.errors import ConfigError
from terrella.trust.risk import RiskModel, fit_risk, least_calibration, score, trusted_below


def made(n, rng, *, wrong_rate=0.1):
    """Signals that tell something, not all, about what is wrong; a wrong step holds nothing of what came."""
    doubt = rng.beta(1, 8, n)
    wrong = (rng.random(n) < doubt * wrong_rate * 9).astype(float)
    held = (1 - wrong) * rng.choice([1.0, 0.5], n)
    return np.column_stack([doubt, doubt / 2, rng.random(n) / 9, rng.random(n)]), wrong, held


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_sets_hold_what_happens_at_the_promised_rate(level):
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(20):
        model = fit_risk(*made(1000, rng, wrong_rate=0.02), level=level)
        signals, _, held = made(1000, rng, wrong_rate=0.02)
        covered += [model.inside(risk, h) for risk, h in zip(model.risks(signals), held, strict=True)]
    assert abs(np.mean(covered) - level) < 0.01


def test_a_model_that_is_often_wrong_gets_sets_that_hold_everything():
    model = fit_risk(*made(1000, np.random.default_rng(0), wrong_rate=0.9), level=0.9)
    assert model.quantile == 1.0 and model.inside(0.99, 0.0)


def test_risk_is_higher_where_steps_are_wrong():
    rng = np.random.default_rng(1)
    model = fit_risk(*made(3000, rng), level=0.9)
    signals, wrong, _ = made(3000, rng)
    risks = model.risks(signals)
    assert risks[wrong == 1].mean() > 1.3 * risks[wrong == 0].mean()
    assert risks.mean() == pytest.approx(wrong.mean(), abs=0.03)  # calibrated on average


def test_too_few_steps_are_refused():
    assert least_calibration(0.9) == 9 and least_calibration(0.99) == 99
    signals, wrong, held = made(12, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="9 steps cannot calibrate"):
        fit_risk(signals, wrong, held, level=0.99)


def test_perfect_and_constant_signals_do_not_blow_up():
    ones, nothing = np.ones(200), np.zeros((200, 4))
    model = fit_risk(nothing, np.zeros(200), ones, level=0.9)
    assert np.isfinite(model.weights).all() and 0 < model.risks(nothing)[0] < 0.2


def test_the_threshold_stops_before_the_errors_begin():
    risks = np.linspace(0, 1, 2000)
    wrong = (risks > 0.6).astype(float)
    found = trusted_below(risks, wrong, error=0.03)
    assert 0.5 < found < 0.65
    assert trusted_below(risks, np.ones(2000), error=0.03) is None
    assert trusted_below(risks[:20], np.zeros(20), error=0.03) is None  # twenty faultless steps show nothing
    assert trusted_below(risks, np.zeros(2000), error=0.03) == 1.0


def test_the_promise_of_the_threshold_holds_on_new_steps():
    rng, kept = np.random.default_rng(2), []
    for _ in range(40):
        risks = rng.random(600)
        wrong = (rng.random(600) < risks**3 * 0.3).astype(float)
        threshold = trusted_below(risks, wrong, error=0.05)
        if threshold is not None:
            kept.append(0.3 * threshold**3 / 4 <= 0.05)  # the true error below the threshold
    assert len(kept) > 30 and np.mean(kept) >= 0.95


def test_a_score_falls_with_what_was_expected():
    assert score(0.0, 1.0) == 0.0 and score(1.0, 1.0) == 1.0 and score(0.1, 0.5) == pytest.approx(0.55)
    assert RiskModel((0.0,) * 5, 0.5, 0.9).inside(0.1, 0.6)
