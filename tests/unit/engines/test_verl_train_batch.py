"""What a step of the verl engine trains on: masked, missing and filling rows; loss weights."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from terrella.algos.estimators import ESTIMATORS
from terrella.engines.configs import RlvrConfig
from terrella.engines.verl.train_batch import (
    TokenColumns,
    batch_metrics,
    episode_facts,
    group_indices,
    group_rewards,
    make_train_batch,
    mismatch,
    row_ages,
)
from terrella.engines.verl.verl_engine import _collapse
from terrella.engines.verl.verl_run import curve

UIDS = ["a", "b", "a", "b", "a", "c", "c", "fill"]
REAL = [True] * 7 + [False]


def record(value: float | None) -> dict[str, Any]:
    return {
        "masked": value is None,
        "status": "env_error" if value is None else "ok",
        "length": 4,
        "turn_rewards": [] if value is None else [0.0, value],
        "world_rewards": [] if value is None else [value, 0.0],
        "turn_ends": [] if value is None else [2, 4],
        "world": "lake",
        "replies": [[True, False, 5, False], [False, True, None, False]],
        "prompt_read": 10,
        "prompt_cached": 4,
    }


RECORDS = [record(value) for value in (1.0, 0.5, 0.0, None, 1.0, 1.0, 1.0, 0.0)]


def columns() -> TokenColumns:
    """Three groups: a has variance, b has one known verdict, c is unanimous.

    The last row only fills up the batch.
    """
    mask = torch.tensor([[True, True, False, True]] * 7 + [[False] * 4])
    sampled = torch.where(mask, -1.0, 0.0)
    return TokenColumns(
        mask_BT=mask,
        sampled_BT=sampled,
        old_BT=sampled.clone(),
        values_BT=torch.zeros(8, 4),
    )


def train_batch(algorithm: str, batch: TokenColumns | None = None, **changes: Any) -> Any:
    batch = batch or columns()
    return make_train_batch(
        batch,
        episode_facts(RECORDS, batch.mask_BT),
        group_indices(UIDS, REAL),
        RlvrConfig(algorithm=algorithm, lam=1.0, **changes),
        longest=4,
    )


def test_groups_are_ragged_and_masked_verdicts_are_nan():
    groups = group_indices(UIDS, REAL)
    assert groups.tolist() == [[0, 2, 4], [1, 3, -1], [5, 6, -1]]
    result = group_rewards(episode_facts(RECORDS, columns().mask_BT), groups)
    assert result[0].tolist() == [1.0, 0.0, 1.0] and result[2, :2].tolist() == [1.0, 1.0]
    assert result[1, 0] == 0.5 and result[1, 1:].isnan().all() and math.isnan(result[2, 2])


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "rloo"])
def test_only_groups_with_variance_count_and_their_weights_add_up_to_one(algorithm: str):
    result = train_batch(algorithm)
    counted = result.weights_BT.sum(1) > 0
    assert counted.tolist() == [True, False, True, False, True, False, False, False]
    assert float(result.weights_BT.sum()) == pytest.approx(1.0)
    # Column 2 is a token of the world.
    assert (result.weights_BT[:, 2] == 0).all() and (result.advantages_BT[:, 2] == 0).all()
    assert result.advantages_BT[0, 0] > 0 > result.advantages_BT[2, 0]
    assert not result.advantages_BT.isnan().any()


def test_with_a_critic_every_known_verdict_counts():
    result = train_batch("ppo")
    assert (result.weights_BT.sum(1) > 0).tolist() == [
        True,
        True,
        True,
        False,
        True,
        True,
        True,
        False,
    ]
    assert float(result.weights_BT.sum()) == pytest.approx(1.0)
    assert result.returns_BT[0].tolist() == [1.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_the_clipped_ratio_of_async_is_that_to_the_sampler(schedule: str):
    batch = columns()
    batch.old_BT.sub_(0.5)
    old = train_batch("grpo", batch, schedule=schedule).columns()["old_log_probs"]
    assert torch.equal(old, batch.sampled_BT if schedule == "async" else batch.old_BT)


def test_importance_weights_are_capped_and_the_critic_has_none():
    batch = columns()
    batch.old_BT.copy_(torch.where(batch.mask_BT, 3.0, 0.0))
    result = train_batch("grpo", batch, importance_cap=2.0).columns()
    assert float(result["policy_weights"].sum()) == pytest.approx(2.0)
    assert float(result["value_weights"].sum()) == pytest.approx(1.0)


def test_all_known_verdicts_are_in_the_denominator_all():
    result = train_batch("grpo", denominator="all")
    assert (result.weights_BT.sum(1) > 0).tolist() == [*[True] * 3, False, *[True] * 3, False]
    assert float(result.weights_BT.sum()) == pytest.approx(1.0)
    assert result.advantages_BT[1].tolist() == result.advantages_BT[5].tolist() == [0.0] * 4


def test_a_turn_has_its_own_advantage_from_the_worlds_rewards():
    """The records' rewards are paid in the second turn, the world's own in the first."""
    by_turn = train_batch("grpo", credit="turn").advantages_BT
    assert by_turn[0, 0] > 0 > by_turn[2, 0] and by_turn[:, 3].tolist() == [0.0] * 8
    assert train_batch("grpo").advantages_BT[0, 3] > 0


def test_a_filter_leaves_groups_out_with_a_critic_too():
    counted = train_batch("ppo", keep_share=0.5).weights_BT.sum(1) > 0
    assert counted.tolist() == [True, False, True, False, True, False, False, False]


def test_world_tokens_of_episodes_that_count_share_the_auxiliary_loss():
    world = train_batch("grpo", world_loss=0.5).world_BT
    assert world[[0, 2, 4], 2].tolist() == pytest.approx([1 / 3] * 3)
    assert float(world.sum()) == pytest.approx(1.0)


def test_the_mismatch_looks_at_the_models_tokens_only():
    batch = columns()
    batch.old_BT[0, 2] = 5.0  # a world token
    assert mismatch(batch) == {"mismatch/mean": 0.0, "mismatch/max": 0.0, "mismatch/kl": 0.0}
    batch.old_BT[0, 1] += 0.21
    assert mismatch(batch)["mismatch/max"] == pytest.approx(0.21)
    assert mismatch(batch)["mismatch/mean"] == pytest.approx(0.01)


def test_the_mismatch_of_older_rows_is_no_alarm():
    batch = columns()
    batch.old_BT[0, 1] += 0.21
    rows = len(batch.old_BT)
    records = [{"min_global_steps": 2 if row == 0 else 4} for row in range(rows)]
    ages = row_ages(records, [True] * rows, version=4)
    assert ages == [2] + [0] * (rows - 1)
    assert row_ages(records, [False] * rows, version=4) == [0] * rows  # they only fill up
    assert mismatch(batch, current=[age == 0 for age in ages])["mismatch/max"] == 0.0
    assert mismatch(batch, current=[False] * rows) == {}


def test_metrics_leave_masked_verdicts_out_of_the_mean():
    facts = episode_facts(RECORDS, columns().mask_BT)[:7]
    result = batch_metrics(train_batch("grpo").rewards_PG, RECORDS[:7], facts)
    assert result["tokens"] == 3
    assert result["reward"] == pytest.approx(4.5 / 6) and result["masked"] == pytest.approx(1 / 7)
    assert result["masked/env_error"] == pytest.approx(1 / 7) and "masked/timeout" not in result
    assert result["zero_variance"] == pytest.approx(2 / 3)
    assert result["prefix_hits"] == pytest.approx(0.4)
    assert result["reward/lake"] == result["reward"]
    assert result["reply/format_errors/lake"] == 0.5
    assert result["reply/format_errors"] == result["reply/truncated"] == 0.5
    assert result["thought/tokens"] == 5.0 and result["thought/truncated"] == 0.0


def test_a_batch_of_unanimous_and_masked_groups_has_no_signal():
    """No weight may move then, not even by an optimizer's momentum."""
    alike = [record(value) for value in (1.0, None, 1.0, None, 1.0, 0.0, 0.0, 0.0)]
    for settings, has_signal in (
        (RlvrConfig(), False),
        (RlvrConfig(algorithm="ppo", critic="separate"), True),  # a critic values every episode
        (RlvrConfig(denominator="all", kl=0.1), True),
        (RlvrConfig(world_loss=0.5), False),  # a group that does not count has no world, either
    ):
        episodes = episode_facts(alike, columns().mask_BT)
        groups = group_indices(UIDS, REAL)
        batch = make_train_batch(columns(), episodes, groups, settings, longest=8)
        assert batch.has_signal(settings) is has_signal
    informative = train_batch("grpo")
    assert informative.has_signal(RlvrConfig())
    on_world = replace(informative, weights_BT=torch.zeros(8, 4), world_BT=torch.ones(8, 4))
    assert on_world.has_signal(RlvrConfig(world_loss=0.5)) and not on_world.has_signal(RlvrConfig())


def test_every_algorithm_is_known_to_both_engines():
    for algorithm in ESTIMATORS:
        assert train_batch(algorithm).weights_BT.sum() > 0


def test_a_step_that_was_done_again_counts_once(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    steps = [{"step": s, "reward": r} for s, r in ((1, 0.1), (2, 0.2), (2, 0.3))]
    file.write_text("".join(json.dumps(step) + "\n" for step in steps))
    assert [step["reward"] for step in curve(file)] == [0.1, 0.3]


def test_a_curve_that_collapsed_is_named():
    alive = {"in_group_std": 0.4, "entropy": 1.0, "zero_variance": 0.1}
    dead = {"in_group_std": 0.0, "entropy": 1.0, "zero_variance": 1.0}
    assert _collapse([alive] * 30) is None
    assert "in_group_std" in _collapse([alive] * 10 + [dead] * 10)
