"""The arithmetic of the outcome model: calibration, bins, errors, abstaining."""

import contextlib

import numpy as np
import pytest

from terrella.core.errors import ConfigError
from terrella.core.types import Split
from terrella.data.attempts import Attempt, PracticeTask, write_attempts
from terrella.pipelines.webrl import outcome_model
from terrella.pipelines.webrl.outcome_model import (
    CALIBRATION,
    SPLITS,
    Calibration,
    OutcomeErrors,
    OutcomeModel,
    _attempts_file,
    _play,
    outcome_errors,
    prediction_metrics,
)
from terrella.show.progress import SilentProgress


def attempts_of(count: int = 4000):
    """Logits that are the log-odds of success, and what happened."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=count) * 2
    return logits, (rng.random(count) < 1 / (1 + np.exp(-logits))).astype(float)


def test_calibration_undoes_overconfidence_and_a_bias_for_yes():
    true_logits, won = attempts_of()
    shown = true_logits * 3 + 15  # it says YES of nearly everything
    calibration = Calibration.fit(shown, won)
    assert calibration.scale == pytest.approx(1 / 3, rel=0.15)
    assert calibration.shift / calibration.scale == pytest.approx(-15, rel=0.1)
    plain, fitted = (
        prediction_metrics(each.probs(shown), won, OutcomeModel.Config())
        for each in (Calibration(scale=1.0, shift=0.0), calibration)
    )
    assert fitted.calibration_error < 0.03 < plain.calibration_error
    assert plain.false_success > 0.9 and fitted.false_success < 0.3
    assert fitted.accuracy > plain.accuracy + 0.2


@pytest.mark.parametrize("labels", [[1.0] * 8, [0.0] * 8, [0.0] * 4 + [1.0] * 4, []])
def test_calibration_on_few_or_one_sided_attempts_is_never_certain(labels):
    calibration = Calibration.fit(np.arange(len(labels), dtype=float), labels)
    probs = calibration.probs(np.arange(8.0))
    assert calibration.scale > 0 and np.isfinite(calibration.shift)
    assert (np.diff(probs) >= 0).all(), "the order of the logits stays"
    if labels:
        assert probs.max() < 0.95 and probs.min() > 0.05
        assert probs.mean() == pytest.approx((sum(labels) + 1) / (len(labels) + 2), abs=0.06)


@pytest.mark.parametrize("setting", [{"attempts": 3}, {"epochs": 0}, {"batch": 0}])
def test_too_few_attempts_to_measure_it_are_refused(setting):
    """A quarter of 3 is none: every metric was nan."""
    (name,) = setting
    with pytest.raises(ConfigError, match="or more") as caught:
        OutcomeModel.Config(**setting)
    assert caught.value.where == name
    OutcomeModel.Config(attempts=4)


def test_attempts_that_are_all_masked_are_named():
    class Broken:
        def play(self, tasks, *, split, watch, journal):
            return [
                Attempt(
                    task=task, instruction="", choices=(), last="", success=None, stop="world_error"
                )
                for task in tasks
            ]

    with pytest.raises(ConfigError, match="none of 4 test attempts has a verdict"):
        _play(Broken(), ["shop"], 4, Split.TEST, 0, SilentProgress(), None)


def test_only_the_first_rank_writes_the_calibration(tmp_path, monkeypatch):
    """Two that wrote it at once broke the run."""
    played = [
        Attempt(
            task=PracticeTask(family="f", seed=n),
            instruction="",
            choices=(),
            last="",
            success=bool(n % 2),
            stop="",
        )
        for n in range(4)
    ]
    for split in SPLITS:
        write_attempts(tmp_path / _attempts_file(split), played)

    class Judge:
        logits = staticmethod(lambda attempts: [float(bool(each.success)) for each in attempts])
        save = staticmethod(lambda path: None)

    class Agent:
        suffix = ""
        judge = staticmethod(lambda saved, base: contextlib.nullcontext(Judge()))
        player = staticmethod(lambda actor: contextlib.nullcontext())

    monkeypatch.setattr(outcome_model, "fit_judge", lambda *_, **__: None)
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        OutcomeModel(OutcomeModel.Config(attempts=4)).fit(
            Agent(), tmp_path / "actor", ["f"], tmp_path, seed=0, patience=1
        )
        assert (tmp_path / CALIBRATION).exists() is (rank == "0")


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
