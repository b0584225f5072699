"""A named algorithm is TRL's of that name, step for step, where docs/algorithms.md says so."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.stock_trl import SIZE, our_steps, stock_steps

from terrella.algos import advantages

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL


@pytest.fixture
def trl_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL adds 1e-4 to a standard deviation, we add 1e-6: the one difference in advantages."""
    monkeypatch.setattr(advantages, "EPSILON", 1e-4)


@pytest.mark.usefixtures("trl_epsilon")
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "rloo"])
def test_with_all_groups_in_the_denominator_it_is_trls(algorithm: str, epochs: int, tmp_path: Path):
    """Episodes of several turns, but one turn for RLOO: TRL's RLOO has no mask for the world."""
    rollout, ours = our_steps(
        tmp_path / "ours",
        turns=1 if algorithm == "rloo" else 3,
        algorithm=algorithm,
        epochs=epochs,
        denominator="all",
        clip_high=0.2,  # TRL's `epsilon_high` is its `epsilon` unless it is set
    )
    theirs = stock_steps(algorithm, rollout, tmp_path / "theirs", epochs=epochs)
    assert len(ours) == len(theirs) == epochs
    for mine, stock in zip(ours, theirs, strict=True):
        assert mine["loss"] == pytest.approx(stock["loss"], abs=1e-4)
        assert mine["grad_norm"] == pytest.approx(stock["grad_norm"], rel=1e-3)
        assert mine["grad_norm"] > 1e-2
    lengths = {sum(episode.model_mask) for episode in rollout.episodes}
    assert len(lengths) > 1  # otherwise normalisations would agree by themselves


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "rloo"])
def test_without_them_the_gradient_is_larger_by_the_share_that_was_dropped(
    algorithm: str, tmp_path: Path
):
    rollout, few = our_steps(tmp_path / "few", algorithm=algorithm)
    _, every = our_steps(tmp_path / "all", algorithm=algorithm, denominator="all")
    written = [sum(episode.model_mask) for episode in rollout.episodes]
    larger = sum(written) / sum(written[:-SIZE]) if algorithm == "dapo" else 4 / 3
    assert few[0]["grad_norm"] / every[0]["grad_norm"] == pytest.approx(larger, rel=1e-3)
