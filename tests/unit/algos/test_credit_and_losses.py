"""Credit and losses against numbers worked out by hand."""

import math

import pytest

torch = pytest.importorskip("torch")
from terrella.algos.credit import spread, turn_level, turn_rewards
from terrella.algos.losses import LossInputs, importance_weights, k3, policy_loss, token_scales, value_loss


def test_a_turn_that_earned_nothing_is_still_a_turn():
    assert turn_rewards([0.0, 1.0, 0.0], [2, 5, 7], 7).tolist() == [0, 0, 0, 0, 1, 0, 0]
    mask = torch.tensor([1, 1, 0, 1, 1, 0, 1.0])
    assert turn_level([0.0, 1.0, 0.0], [2, 5, 7], mask, gamma=0.5).tolist() == [0.5, 0.5, 0, 1, 1, 0, 0]


def test_an_outcome_is_spread_over_model_tokens():
    assert spread(torch.tensor([2.0]), torch.tensor([[1.0, 0.0, 1.0]])).tolist() == [[2, 0, 2]]


@pytest.mark.parametrize("normalise", ["episode", "token"])
def test_shares_of_a_batch_add_up_to_one(normalise: str):
    lengths = [1, 3, 10]
    shares = [token_scales(normalise, written=n, episodes=3, tokens=14, longest=16) for n in lengths]
    assert sum(share * n for share, n in zip(shares, lengths, strict=True)) == pytest.approx(1)


def test_constant_shares_do_not_depend_on_length():
    assert {token_scales("constant", written=n, episodes=4, tokens=20, longest=5) for n in (1, 9)} == {1 / 20}


def inputs(ratios: list[float], advantages: list[float], **more: object) -> LossInputs:
    return LossInputs(
        logprobs=torch.tensor(ratios).log().requires_grad_(), old_logprobs=torch.zeros(len(ratios)),
        advantages=torch.tensor(advantages), weights=torch.full((len(ratios),), 1 / len(ratios)), **more,
    )  # fmt: skip


def test_clipping_stops_the_gradient_only_where_it_would_go_further():
    given = inputs([1.5, 1.5, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0])
    loss, found = policy_loss(given, clip_low=0.2, clip_high=0.2, kl=0.0)
    loss.backward()
    assert loss.item() == pytest.approx((-1.2 + 1.5 - 0.5 + 0.8) / 4)
    assert [bool(g) for g in given.logprobs.grad] == [False, True, True, False]
    assert found["clip_share"].tolist() == [1, 1, 1, 1]


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
    assert loss.item() == pytest.approx(0.5 * math.exp(-1)) and float(found["kl"]) == pytest.approx(math.exp(-1))


def test_value_loss_takes_the_worse_of_clipped_and_free():
    values, old, returns = torch.tensor([1.0, 0.1]), torch.zeros(2), torch.ones(2)
    assert value_loss(values, old, returns, clip=0.2).tolist() == pytest.approx([0.5 * 0.64, 0.5 * 0.81])


def test_importance_weights_are_truncated():
    found = importance_weights(torch.tensor([0.0, -1.0, 3.0]), torch.tensor([0.0, 0.0, 0.0]), cap=2.0)
    assert found.tolist() == pytest.approx([1.0, math.exp(-1), 2.0])
