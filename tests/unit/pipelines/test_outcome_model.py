"""The arithmetic of the outcome model: temperature, bins, errors, abstaining."""

import numpy as np
import pytest

from terrella.core.errors import ConfigError
from terrella.data.attempts import Attempt, PracticeTask
from terrella.pipelines.webrl.outcome_model import (
    OutcomeErrors,
    OutcomeModel,
    fit_temperature,
    outcome_errors,
    prediction_metrics,
    sigmoid,
)


def test_the_temperature_undoes_overconfidence():
    rng = np.random.default_rng(0)
    true_logits = rng.normal(size=4000) * 2
    won = (rng.random(4000) < sigmoid(true_logits, 1.0)).astype(float)
    temperature = fit_temperature(true_logits * 3, won)
    assert 2.6 < temperature < 3.4
    plain, fitted = (
        prediction_metrics(sigmoid(true_logits * 3, t), won, OutcomeModel.Config())
        for t in (1.0, temperature)
    )
    assert fitted.calibration_error < 0.03 < plain.calibration_error
    assert fitted.accuracy == plain.accuracy


def test_both_kinds_of_error_are_told_apart_and_silence_is_counted():
    config = OutcomeModel.Config(abstain_low=0.3, abstain_high=0.7)
    metrics = prediction_metrics([0.9, 0.8, 0.1, 0.6, 0.2], [1, 0, 0, 0, 1], config)
    assert metrics.accuracy == pytest.approx(0.4)
    assert metrics.false_success == pytest.approx(1 / 3) and metrics.false_failure == 0.5
    assert metrics.abstained == 0.2 and metrics.accuracy_when_answering == 0.5
    model = OutcomeModel(config)
    assert [model.decide(prob) for prob in (None, 0.5, 0.7, 0.3)] == [None, None, 1.0, 0.0]
    assert OutcomeModel(OutcomeModel.Config()).decide(0.5) == 1.0
    with pytest.raises(ConfigError, match="is not a band"):
        OutcomeModel.Config(abstain_low=0.8, abstain_high=0.2)


@pytest.mark.parametrize(
    ("low", "high", "probs"),
    [(0.8, 0.8, [0.6, 0.7, 0.75, 0.9]), (0.6, 0.9, [0.55, 0.58, 0.6, 0.95])],
)
def test_what_is_measured_are_the_decisions_that_are_made(low, high, probs):
    config = OutcomeModel.Config(abstain_low=low, abstain_high=high)
    assert [OutcomeModel(config).decide(prob) for prob in probs] == [0.0, 0.0, 0.0, 1.0]
    metrics = prediction_metrics(probs, [0, 0, 0, 1], config)
    assert metrics.accuracy == metrics.accuracy_when_answering == 1.0
    assert metrics.false_success == metrics.false_failure == metrics.abstained == 0.0


def test_a_phase_reports_how_often_the_outcome_model_was_wrong():
    played = [
        Attempt(
            task=PracticeTask(family="f", seed=n),
            instruction="",
            choices=(),
            last="",
            success=won,
            stop="",
        )
        for n, won in enumerate((True, False, False, None))
    ]
    assert outcome_errors(played, [1.0, 1.0, None, None]) == OutcomeErrors(
        n=3, abstained=1, wrong=1, false_success=1, truly_won=1 / 3
    )
