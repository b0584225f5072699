"""What a step of the cluster engine trains on: masked, missing and filling rows, and shares that add up."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from terrella.algos.estimators import ESTIMATORS
from terrella.engines.verl.lessons import (
    Rows,
    batch_figures,
    estimate,
    group_rewards,
    groups_of,
    learn,
    mismatch,
    paid_tokens,
)
from terrella.engines.verl.verl_engine import curve

UIDS = ["a", "b", "a", "b", "a", "c", "c", "fill"]
REAL = [True] * 7 + [False]


def record(value: float | None) -> dict[str, Any]:
    return {"masked": value is None, "paid": [] if value is None else [0.0, value],
            "turn_ends": [] if value is None else [2, 4], "prompt_read": 10, "prompt_cached": 4}  # fmt: skip


RECORDS = [record(value) for value in (1.0, 0.5, 0.0, None, 1.0, 1.0, 1.0, 0.0)]


def rows() -> Rows:
    """Three groups: a learns, b has one known verdict, c is unanimous; the last row only fills up."""
    mask = torch.tensor([[True, True, False, True]] * 7 + [[False] * 4])
    sampled = torch.where(mask, -1.0, 0.0)
    return Rows(mask_BT=mask, sampled_BT=sampled, old_BT=sampled.clone(), paid_BT=paid_tokens(RECORDS, mask),
                values_BT=torch.zeros(8, 4))  # fmt: skip


def settings(algorithm: str, **changes: Any) -> Any:
    plain = {"algorithm": algorithm, "gamma": 1.0, "lam": 1.0, "whiten": False, "importance_cap": 0.0}
    return SimpleNamespace(**{**plain, **changes})


def lessons(algorithm: str, **changes: Any) -> Any:
    batch, groups = rows(), groups_of(UIDS, REAL)
    return learn(batch, groups, estimate(batch, groups, algorithm=algorithm), settings(algorithm, **changes), longest=4)


def test_groups_are_ragged_and_masked_verdicts_are_nan():
    groups = groups_of(UIDS, REAL)
    assert groups.tolist() == [[0, 2, 4], [1, 3, -1], [5, 6, -1]]
    found = group_rewards(rows().paid_BT, groups)
    assert found[0].tolist() == [1.0, 0.0, 1.0] and found[2, :2].tolist() == [1.0, 1.0]
    assert found[1, 0] == 0.5 and found[1, 1:].isnan().all() and math.isnan(found[2, 2])


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "rloo"])
def test_only_groups_that_teach_count_and_their_shares_add_up_to_one(algorithm: str):
    found = lessons(algorithm)
    taught = found.weights_BT.sum(1) > 0
    assert taught.tolist() == [True, False, True, False, True, False, False, False]
    assert float(found.weights_BT.sum()) == pytest.approx(1.0)
    assert (found.weights_BT[:, 2] == 0).all() and (found.advantages_BT[:, 2] == 0).all()  # the world's token
    assert found.advantages_BT[0, 0] > 0 > found.advantages_BT[2, 0] and not found.advantages_BT.isnan().any()


def test_with_a_critic_every_known_verdict_counts():
    found = lessons("ppo")
    assert (found.weights_BT.sum(1) > 0).tolist() == [True, True, True, False, True, True, True, False]
    assert float(found.weights_BT.sum()) == pytest.approx(1.0)
    assert found.returns_BT[0].tolist() == [1.0, 1.0, 0.0, 1.0]


def test_importance_weights_are_capped():
    batch, groups = rows(), groups_of(UIDS, REAL)
    batch.old_BT.copy_(torch.where(batch.mask_BT, 3.0, 0.0))
    found = learn(
        batch, groups, estimate(batch, groups, algorithm="grpo"), settings("grpo", importance_cap=2.0), longest=4
    )
    assert float(found.weights_BT.sum()) == pytest.approx(2.0)


def test_the_mismatch_looks_at_the_models_tokens_only():
    batch = rows()
    batch.old_BT[0, 2] = 5.0  # a world token
    assert mismatch(batch) == {"mismatch/mean": 0.0, "mismatch/max": 0.0, "mismatch/kl": 0.0}
    batch.old_BT[0, 1] += 0.21
    assert mismatch(batch)["mismatch/max"] == pytest.approx(0.21) and mismatch(batch)["mismatch/mean"] == pytest.approx(
        0.01
    )


def test_figures_leave_masked_verdicts_out_of_the_mean():
    found = batch_figures(lessons("grpo"), RECORDS[:7], [3] * 7)
    assert found["reward"] == pytest.approx(4.5 / 6) and found["masked"] == pytest.approx(1 / 7)
    assert found["zero_variance"] == pytest.approx(2 / 3) and found["prefix_hits"] == pytest.approx(0.4)


def test_every_algorithm_is_known_to_both_engines():
    for algorithm in ESTIMATORS:
        assert lessons(algorithm).weights_BT.sum() > 0


def test_a_step_that_was_done_again_counts_once(tmp_path: Path):
    file = tmp_path / "figures.jsonl"
    file.write_text("".join(json.dumps({"step": s, "reward": r}) + "\n" for s, r in ((1, 0.1), (2, 0.2), (2, 0.3))))
    assert [row["reward"] for row in curve(file)] == [0.1, 0.3]
