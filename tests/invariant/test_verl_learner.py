"""A learner on verl takes the steps of the TRL learner: same data, same numbers."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from tests.support.learner_steps import (
    ADAM,
    CALLS,
    WEBRL,
    assert_same,
    examples,
    steps,
    trl_learner,
)
from tests.support.verl_cpu import use, wide_model

use()
from tests.support.verl_cpu.one_learner import one_learner

from terrella.core.errors import EngineError
from terrella.models.export import VALUE_HEAD

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl's dependencies
VALUES: list[tuple[str, dict[str, Any]]] = [("value", {}), ("value", {"clip": 0.5})]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("start") / "model"
    wide_model(place)
    return place


def test_a_policy_takes_the_same_steps(folder: Path, tmp_path: Path):
    with trl_learner(folder, "token", tmp_path) as learner:
        by_trl = steps(learner, CALLS)
    learner = one_learner(folder, "token", tmp_path)
    assert_same(steps(learner, CALLS), by_trl)
    with pytest.raises(EngineError, match="no gradient"):
        learner.optim_step(ADAM)


def test_an_update_of_webrl_is_the_same_from_the_same_rows(folder: Path, tmp_path: Path):
    """Loss, gradient norm and log-probabilities of every named loss, within 1e-4."""
    with trl_learner(folder, "token", tmp_path) as learner:
        by_trl = steps(learner, WEBRL)
    assert_same(steps(one_learner(folder, "token", tmp_path), WEBRL), by_trl)


def test_a_state_and_an_export_hold_what_was_learned(folder: Path, tmp_path: Path):
    learner = one_learner(folder, "token", tmp_path)
    steps(learner, CALLS[:1])
    learner.save_state(tmp_path / "state")
    learner.export(tmp_path / "exported")
    after = learner.forward(examples())
    then = steps(learner, CALLS[1:])
    assert learner.forward(examples()) != after
    learner.load_state(tmp_path / "state")
    assert learner.forward(examples()) == after and learner.steps == 1
    assert steps(learner, CALLS[1:]) == then
    with trl_learner(tmp_path / "exported", "token", tmp_path) as other:
        for one, row in zip(other.forward(examples()), after, strict=True):
            assert one == pytest.approx(row, abs=1e-4)


def test_a_value_head_takes_the_same_steps_and_is_read_back(folder: Path, tmp_path: Path):
    with trl_learner(folder, "value", tmp_path) as learner:
        by_trl = steps(learner, VALUES)
    learner = one_learner(folder, "value", tmp_path)
    assert_same(steps(learner, VALUES), by_trl)
    learner.export(tmp_path / "exported")
    assert (tmp_path / "exported" / VALUE_HEAD).is_file()
    again = one_learner(tmp_path / "exported", "value", tmp_path).forward(examples())
    with trl_learner(tmp_path / "exported", "value", tmp_path) as other:
        by_other = other.forward(examples())
    for rows in (again, by_other):
        found = [number for row in rows for number in row]
        assert found == pytest.approx(by_trl[-1]["outputs"], abs=1e-4)
