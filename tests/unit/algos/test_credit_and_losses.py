"""Credit and losses against numbers worked out by hand."""

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from terrella.algos.credit import per_turn, rewards_by_turn, to_go, turn_rewards
from terrella.algos.losses import (
    LossInputs,
    importance_weights,
    k3,
    policy_loss,
    token_scales,
    value_loss,
)
from terrella.core.tokens import TokenEpisode
from terrella.core.types import Status, Verdict


def test_a_turn_that_earned_nothing_is_still_a_turn():
    assert turn_rewards([0.0, 1.0, 0.0], [2, 5, 7], 7).tolist() == [0, 0, 0, 0, 1, 0, 0]


def test_two_rewards_that_end_on_one_token_add_up():
    assert turn_rewards([1.0, 2.0], [3, 3], 4).tolist() == [0, 0, 3, 0]


def episode_of_turns(rewards: list[float], outcome: Verdict) -> TokenEpisode:
    count = len(rewards)
    return TokenEpisode(
        prompt_ids=(),
        completion_ids=(7,) * count,
        model_mask=(True,) * count,
        logprobs=(0.0,) * count,
        turn_ends=tuple(range(1, count + 1)),
        turn_rewards=tuple(rewards),
        outcome=outcome,
        group="g",
    )


def test_a_return_pays_every_turn_what_the_world_paid():
    assert rewards_by_turn(episode_of_turns([0.5, 0.0, -1.0], Verdict.of(1.0)), "return") == [
        0.5,
        0.0,
        -1.0,
    ]


def test_a_verdict_is_paid_once_to_the_last_turn():
    assert rewards_by_turn(episode_of_turns([0.5, 0.0, -1.0], Verdict.of(0.25)), "outcome") == [
        0.0,
        0.0,
        0.25,
    ]
    assert rewards_by_turn(episode_of_turns([0.5], Verdict.of(1.0)), "outcome") == [1.0]


def test_a_masked_verdict_pays_nothing():
    masked = Verdict.failed(Status.TIMEOUT, "too slow")
    assert rewards_by_turn(episode_of_turns([0.5, 0.5], masked), "outcome") == [0.0, 0.0]


def test_what_is_to_come_is_a_mean_per_turn():
    # (1 + 2 + 6) / 3, (2 + 6) / 2, 6 / 1
    assert to_go([1.0, 2.0, 6.0]) == [3.0, 4.0, 6.0]
    assert to_go([]) == []


def test_a_turn_s_value_stands_on_each_of_its_tokens_and_nowhere_else():
    assert per_turn([1.0, 2.0, 3.0], [2, 3, 6], 8) == [1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 0.0, 0.0]


@pytest.mark.parametrize("normalise", ["episode", "token"])
def test_shares_of_a_batch_add_up_to_one(normalise: str):
    lengths = [1, 3, 10]
    shares = [
        token_scales(normalise, written=n, episodes=3, tokens=14, longest=16) for n in lengths
    ]
    assert sum(share * n for share, n in zip(shares, lengths, strict=True)) == pytest.approx(1)


def test_constant_shares_do_not_depend_on_length():
    assert {
        token_scales("constant", written=n, episodes=4, tokens=20, longest=5) for n in (1, 9)
    } == {1 / 20}


def inputs(ratios: list[float], advantages: list[float], **more: object) -> LossInputs:
    return LossInputs(
        logprobs=torch.tensor(ratios).log().requires_grad_(),
        old_logprobs=torch.zeros(len(ratios)),
        advantages=torch.tensor(advantages),
        weights=torch.full((len(ratios),), 1 / len(ratios)),
        **more,
    )


def test_clipping_stops_the_gradient_only_where_it_would_go_further():
    given = inputs([1.5, 1.5, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0])
    loss, found = policy_loss(given, clip_low=0.2, clip_high=0.2, kl=0.0)
    loss.backward()
    assert loss.item() == pytest.approx((-1.2 + 1.5 - 0.5 + 0.8) / 4)
    assert [bool(g) for g in given.logprobs.grad] == [False, True, True, False]
    assert found["clip_share"].tolist() == [1, 1, 1, 1]


def clipped_surrogate(
    now: list[float],
    old: list[float],
    advantages: list[float],
    weights: list[float],
    low: float,
    high: float,
) -> float:
    """PPO's objective as the paper writes it, one token at a time, in plain numbers."""
    total = 0.0
    for new, before, advantage, weight in zip(now, old, advantages, weights, strict=True):
        ratio = math.exp(new) / math.exp(before)
        kept = min(max(ratio, 1 - low), 1 + high)
        total -= weight * min(ratio * advantage, kept * advantage)
    return total


NOW = [-1.0, -0.2, -2.5, -3.0, -0.7, -1.4]
OLD = [-1.5, -0.9, -1.0, -2.9, -0.75, -4.0]
GAINS = [2.0, -1.0, 0.5, -3.0, 1.0, 0.0]
SHARES = [0.1, 0.2, 0.3, 0.15, 0.05, 0.2]


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.6, 3.0)])
def test_the_ratio_is_of_the_policy_now_to_the_one_that_sampled(low: float, high: float):
    now = torch.tensor(NOW, dtype=torch.float64, requires_grad=True)
    old, gains, shares = (torch.tensor(row, dtype=torch.float64) for row in (OLD, GAINS, SHARES))
    given = LossInputs(logprobs=now, old_logprobs=old, advantages=gains, weights=shares)
    loss, found = policy_loss(given, clip_low=low, clip_high=high, kl=0.0)
    assert loss.item() == pytest.approx(clipped_surrogate(NOW, OLD, GAINS, SHARES, low, high))
    loss.backward()
    for place in range(len(NOW)):
        near = [
            [x + (step if i == place else 0.0) for i, x in enumerate(NOW)] for step in (1e-6, -1e-6)
        ]
        up, down = (clipped_surrogate(row, OLD, GAINS, SHARES, low, high) for row in near)
        assert float(now.grad[place]) == pytest.approx((up - down) / 2e-6, abs=1e-6)
    outside = [not 1 - low <= math.exp(a - b) <= 1 + high for a, b in zip(NOW, OLD, strict=True)]
    assert found["clip_share"].tolist() == outside and 0 < sum(outside) < len(outside)


def test_clip_higher_lets_good_tokens_rise_further():
    given = inputs([1.25, 0.75], [1.0, -1.0])
    loss, _ = policy_loss(given, clip_low=0.2, clip_high=0.28, kl=0.0)
    loss.backward()
    assert [bool(g) for g in given.logprobs.grad] == [True, False]


def test_kl_is_zero_at_the_reference_and_positive_elsewhere():
    same = torch.tensor([-1.0, -2.0])
    assert k3(same, same).tolist() == [0, 0]
    assert float(k3(torch.tensor(-1.0), torch.tensor(-2.0))) == pytest.approx(math.exp(-1) + 1 - 1)
    given = inputs([1.0], [0.0], reference_logprobs=torch.tensor([-1.0]))
    loss, found = policy_loss(given, clip_low=0.2, clip_high=0.2, kl=0.5)
    assert loss.item() == pytest.approx(0.5 * math.exp(-1)) and float(found["kl"]) == pytest.approx(
        math.exp(-1)
    )


def test_an_entropy_bonus_lowers_the_loss_by_the_weighted_entropy():
    entropy = torch.tensor([0.5, 2.0], requires_grad=True)
    weights = torch.tensor([0.75, 0.25])
    given = LossInputs(
        logprobs=torch.tensor([-1.0, -2.0], requires_grad=True),
        old_logprobs=torch.tensor([-1.0, -2.0]),
        advantages=torch.tensor([1.0, -1.0]),
        weights=weights,
        entropy=entropy,
    )
    without, _ = policy_loss(replace(given, entropy=None), clip_low=0.2, clip_high=0.2, kl=0.0)
    loss, _ = policy_loss(given, clip_low=0.2, clip_high=0.2, kl=0.0, entropy_bonus=0.1)
    loss.backward()
    assert (without - loss).item() == pytest.approx(0.1 * (0.75 * 0.5 + 0.25 * 2.0))
    assert entropy.grad.tolist() == pytest.approx([-0.1 * 0.75, -0.1 * 0.25])


def test_the_kl_is_reported_without_its_gradient_and_paid_with_it():
    given = LossInputs(
        logprobs=torch.tensor([-1.0, -2.0], requires_grad=True),
        old_logprobs=torch.tensor([-1.0, -2.0]),
        advantages=torch.tensor([1.0, -1.0]),
        weights=torch.tensor([0.5, 0.25]),
        reference_logprobs=torch.tensor([-1.5, -1.0]),
    )
    loss, found = policy_loss(given, clip_low=0.2, clip_high=0.2, kl=0.1)
    # k3 = e^d - 1 - d with d = reference - now: -0.5 and +1
    divergence = [math.exp(-0.5) - 1 + 0.5, math.e - 1 - 1]
    assert found["kl"].tolist() == pytest.approx(divergence) and not found["kl"].requires_grad
    assert loss.item() == pytest.approx(
        0.5 * (-1 + 0.1 * divergence[0]) + 0.25 * (1 + 0.1 * divergence[1])
    )
    loss.backward()
    # The surrogate's slope is -A at a ratio of 1, the penalty's 1 - e^d.
    slopes = [0.5 * (-1 + 0.1 * (1 - math.exp(-0.5))), 0.25 * (1 + 0.1 * (1 - math.e))]
    assert given.logprobs.grad.tolist() == pytest.approx(slopes)


def test_value_loss_is_clipped_around_the_old_value_not_around_zero():
    values, old, returns = (
        torch.tensor([2.0, 0.0, 1.1]),
        torch.tensor([1.0, 1.0, 1.0]),
        torch.tensor([1.9, 0.1, 3.0]),
    )
    # 2.0 is drawn back to 1.2 (error 0.7), 0.0 up to 0.8 (error 0.7), 1.1 stays (error 1.9)
    wanted = [0.5 * 0.7**2, 0.5 * 0.7**2, 0.5 * 1.9**2]
    assert value_loss(values, old, returns, clip=0.2).tolist() == pytest.approx(wanted)


def test_value_loss_of_a_critic_that_moved_away_is_not_softened_by_the_clip():
    # 0.0 is 2 from the return, though 0.8, where the clip ends, is only 1.2 from it; below and
    # above
    found = value_loss(
        torch.tensor([0.0, 3.0]), torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]), clip=0.2
    )
    assert found.tolist() == pytest.approx([2.0, 2.0])


def test_value_loss_takes_the_worse_of_clipped_and_free():
    values, old, returns = torch.tensor([1.0, 0.1]), torch.zeros(2), torch.ones(2)
    assert value_loss(values, old, returns, clip=0.2).tolist() == pytest.approx(
        [0.5 * 0.64, 0.5 * 0.81]
    )


def test_importance_weights_are_truncated():
    found = importance_weights(
        torch.tensor([0.0, -1.0, 3.0]), torch.tensor([0.0, 0.0, 0.0]), cap=2.0
    )
    assert found.tolist() == pytest.approx([1.0, math.exp(-1), 2.0])
    both = importance_weights(torch.tensor([-1.0, -3.0]), torch.tensor([-1.5, -2.0]), cap=9.0)
    assert both.tolist() == pytest.approx([math.exp(0.5), math.exp(-1)])


def test_one_ratio_per_episode_is_the_product_of_its_tokens():
    """Two episodes; the first rises by e^0.1 * e^0.3, beyond a clip that each token keeps."""
    logprobs = torch.tensor([0.1, -0.05, 0.3], requires_grad=True)
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=torch.zeros(3),
        advantages=torch.tensor([1.0, 2.0, 1.0]),
        weights=torch.tensor([0.25, 0.5, 0.25]),
        episodes=torch.tensor([0, 1, 0]),
    )
    loss, found = policy_loss(inputs, clip_low=0.2, clip_high=0.4, kl=0.0)
    assert loss.item() == pytest.approx(-(0.5 * 1.4 + 0.5 * math.exp(-0.05) * 2.0))
    assert found["clip_share"].tolist() == [1.0, 0.0, 1.0]
    loss.backward()
    # A clipped episode has no gradient; another's is that of its probability as a whole.
    assert logprobs.grad.tolist() == pytest.approx([0.0, -math.exp(-0.05), 0.0])


def test_the_gradient_of_an_episode_does_not_shrink_with_its_length():
    for count in (1, 4):
        logprobs = torch.zeros(count, requires_grad=True)
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=torch.zeros(count),
            advantages=torch.ones(count),
            weights=torch.full((count,), 1 / count),
            episodes=torch.zeros(count, dtype=torch.long),
        )
        policy_loss(inputs, clip_low=0.2, clip_high=0.2, kl=0.0)[0].backward()
        assert logprobs.grad.tolist() == pytest.approx([-1.0] * count)
