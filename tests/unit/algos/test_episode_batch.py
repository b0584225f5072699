"""Which episodes count, with what advantage and weight: worked out by hand."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from terrella.algos.episode_batch import (
    MISSING,
    EpisodeFacts,
    Score,
    TokenCounts,
    chosen_groups,
    informative_groups,
    replacement_task,
    score_episodes,
    token_columns,
    token_counts,
    turn_advantages,
)
from terrella.core.errors import ConfigError, EngineError
from terrella.engines.configs import RlvrConfig


def rules(**changes: Any) -> Any:
    plain = {
        "algorithm": "dr_grpo",
        "credit": "episode",
        "keep_share": 1.0,
        "keep_top_p": 1.0,
        "denominator": "informative",
        "world_loss": 0.0,
        "mini_batches": 1,
    }
    return SimpleNamespace(**{**plain, **changes})


def episode(*rewards: float, masked: bool = False) -> EpisodeFacts:
    """Turns of two tokens: one of the model, then one of the world."""
    count = len(rewards)
    return EpisodeFacts(
        model_mask=(True, False) * count,
        turn_ends=tuple(range(1, 2 * count, 2)),
        rewards=rewards,
        world_rewards=rewards,
        masked=masked,
    )


@pytest.mark.parametrize("rewards", [(1.0, math.nan), (math.inf,), (1e308, 1e308)])
def test_a_reward_that_is_not_finite_does_not_pass_for_a_masked_one(rewards: Any) -> None:
    with pytest.raises(EngineError, match="an episode that is not masked has the reward"):
        _ = episode(*rewards).reward
    assert math.isnan(episode(*rewards, masked=True).reward)


VARIED = [episode(1.0), episode(0.0)]
EQUAL = [episode(1.0), episode(1.0)]
ONE_MASKED = [episode(1.0), episode(0.0, masked=True)]


def scores(episodes: list[EpisodeFacts], **changes: Any) -> list[Score | None]:
    rewards = torch.tensor([each.reward for each in episodes]).view(-1, 2)
    settings = rules(**changes)
    return score_episodes(episodes, chosen_groups(episodes, rewards, settings), settings)


def advantages(found: list[Score | None]) -> list[float | None]:
    return [each and each.advantage for each in found]


def test_groups_without_variance_count_only_in_the_denominator_all():
    batch = [*VARIED, *EQUAL, *ONE_MASKED]
    assert advantages(scores(batch)) == [0.5, -0.5, None, None, None, None]
    # A masked verdict never counts; a lone one has nothing to be compared with.
    assert advantages(scores(batch, denominator="all")) == [0.5, -0.5, 0.0, 0.0, 0.0, None]


def test_with_a_critic_every_known_verdict_counts():
    found = scores([*VARIED, *EQUAL, *ONE_MASKED, MISSING, MISSING], algorithm="ppo")
    assert advantages(found) == [0.0] * 5 + [None] * 3


@pytest.mark.parametrize("settings", [{"keep_share": 0.5}, {"keep_top_p": 0.6}])
@pytest.mark.parametrize("denominator", ["all", "informative"])
def test_a_group_that_a_filter_left_out_does_not_count(settings: Any, denominator: str):
    batch = [episode(0.2), episode(0.0), *VARIED]
    found = advantages(scores(batch, denominator=denominator, **settings))
    assert found == [None, None, 0.5, -0.5]


def test_filters_choose_groups_for_ppo_too():
    batch = [*EQUAL, *VARIED]
    assert advantages(scores(batch, algorithm="ppo", keep_share=0.5)) == [None, None, 0.0, 0.0]


def test_a_turn_is_compared_with_the_same_turn_of_its_group():
    rewards = torch.tensor([[1.0, 0.0], [1.0, math.nan]])
    turns = [(1.0, 0.0), (0.0, 0.0, 1.0), (1.0,), ()]
    # Mean rewards to go: 0.5, 0.0 against 1/3, 0.5, 1.0. The third turn has no one to compare with.
    first, second, *rest = turn_advantages(turns, rewards, "dr_grpo")
    assert first == pytest.approx((1 / 12, -0.25))
    assert second == pytest.approx((-1 / 12, 0.25, 0.0))
    assert rest == [(0.0,), ()]


@pytest.mark.parametrize("credit", ["episode", "turn"])
@pytest.mark.parametrize("denominator", ["all", "informative"])
def test_a_batch_without_any_turn_has_nothing_to_train_on(credit: str, denominator: str):
    """All worlds of a process broke before the first turn."""
    lost = [MISSING] * 4
    assert scores(lost, credit=credit, denominator=denominator) == [None] * 4
    assert turn_advantages([(), ()], torch.tensor([[1.0, 0.0]]), "dr_grpo") == [(), ()]


def test_a_score_by_turn_is_on_the_tokens_of_the_turn():
    found = scores([episode(1.0, 0.0), episode(0.0, 0.0)], credit="turn")
    assert found[0] is not None and found[0].turns == pytest.approx((0.25, 0.0))
    columns = token_columns(
        episode(1.0, 0.0), found[0], TokenCounts(2, 4), rules(credit="turn"), longest=4
    )
    assert columns["advantage"].tolist() == [0.25, 0.0, 0.0, 0.0]


def failed(*world_rewards: float) -> EpisodeFacts:
    return dataclasses.replace(episode(*world_rewards), rewards=(0.0,) * len(world_rewards))


@pytest.mark.parametrize("settings", [{}, {"keep_share": 0.5}, {"keep_top_p": 0.9}])
def test_turns_that_differ_are_trained_on_where_all_verdicts_are_equal(settings: Any):
    """All episodes fail, and the turns of the first group earn different rewards."""
    batch = [failed(1.0, 0.0), failed(0.0, 1.0), failed(0.5, 0.5), failed(0.5, 0.5)]
    everything = scores(batch, credit="turn", denominator="all")
    assert everything[0] is not None and everything[0].turns == (0.0, -0.5)
    assert scores(batch, credit="turn", **settings) == [*everything[:2], None, None]
    rewards = torch.zeros(2, 2)
    for credit, informative in (("turn", [True, False]), ("episode", [False, False])):
        assert informative_groups(batch, rewards, rules(credit=credit)).tolist() == informative


def test_an_episode_has_a_gradient_if_any_turn_has():
    assert Score(0.0, (0.0, 0.1)).has_gradient and Score(-0.1).has_gradient
    assert not Score(0.0).has_gradient and not Score(0.0, (0.0,)).has_gradient


@pytest.mark.parametrize(
    ("algorithm", "weight"),
    [("grpo", 1 / 4), ("rloo", 1 / 4), ("dapo", 1 / 3), ("ppo", 1 / 3), ("dr_grpo", 1 / 20)],
)
def test_weights_of_a_token(algorithm: str, weight: float):
    """An episode of two written tokens, in a batch of two episodes with three written tokens."""
    long, short = episode(1.0, 0.0), episode(0.0)
    counts = token_counts([long.model_mask, short.model_mask])
    assert counts == (2, 3, 3)
    columns = token_columns(long, Score(1.0), counts, rules(algorithm=algorithm), longest=10)
    assert columns["weight"].tolist() == pytest.approx([weight] * 4)
    assert ("reward" in columns) is (algorithm == "ppo")
    parts = rules(algorithm=algorithm, mini_batches=3)
    columns = token_columns(long, Score(1.0), counts, parts, longest=10)
    assert columns["weight"].tolist() == pytest.approx([3 * weight] * 4)


def test_with_a_critic_each_turn_is_paid_on_its_last_token():
    columns = token_columns(
        episode(0.5, 2.0), Score(0.0), TokenCounts(1, 2), rules(algorithm="ppo"), longest=4
    )
    assert columns["reward"].tolist() == [0.5, 0.0, 2.0, 0.0] and "advantage" not in columns


def test_world_tokens_share_the_auxiliary_loss_and_an_episode_may_have_none():
    counts = TokenCounts(2, 4, 4)
    columns = token_columns(episode(1.0, 0.0), Score(1.0), counts, rules(world_loss=1), longest=4)
    assert columns["world"].tolist() == [0.0, 0.25, 0.0, 0.25]
    alone = EpisodeFacts(model_mask=(True,), turn_ends=(1,), rewards=(1.0,), world_rewards=(1.0,))
    columns = token_columns(alone, Score(1.0), TokenCounts(1, 1, 0), rules(world_loss=1), longest=4)
    assert columns["world"].tolist() == [0.0]
    assert "world" not in token_columns(alone, Score(1.0), counts, rules(), longest=4)


def test_a_replacement_is_a_task_beyond_the_run_and_differs_in_every_round():
    tasks = {replacement_task(n, extra=extra, run_tasks=6) for n in range(6) for extra in (1, 2)}
    assert tasks == set(range(6, 18))


def test_names_bring_their_papers_settings_and_the_user_wins():
    assert RlvrConfig().clip_range == (0.2, 0.2) and RlvrConfig().refill_rounds == 0
    assert RlvrConfig(clip_low=0.1).clip_range == (0.1, 0.1)
    dapo = RlvrConfig(algorithm="dapo")
    assert dapo.clip_range == (0.2, 0.28) and dapo.refill_rounds == 10
    own = dapo.replace(clip_high=0.2, refill=0)
    assert own.clip_range == (0.2, 0.2) and own.refill_rounds == 0


@pytest.mark.parametrize("changes", [{"credit": "turn"}, {"importance_cap": 2.0}])
def test_one_ratio_per_episode_refuses_credit_and_weights_within_it(changes: Any):
    with pytest.raises(ConfigError, match="one ratio for an episode"):
        RlvrConfig(algorithm="rloo", **changes).check(processes=1)
    RlvrConfig(algorithm="grpo", **changes).check(processes=1)
