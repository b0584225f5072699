"""Each loss against its closed-form gradient on random inputs; the released one's oddities."""

import math

import pytest

torch = pytest.importorskip("torch")
from terrella.algos.webrl import (
    ACTOR_LOSSES,
    ScoredSteps,
    critic_loss,
    paper_advantages,
    pessimistic_value,
    released_advantages,
)
from terrella.algos.webrl_config import WebRlLossConfig, WebRlUpdateConfig
from terrella.core.errors import ConfigError

SEEDS = range(20)


def made(seed, count=64, spread=0.5):
    draw = torch.Generator().manual_seed(seed)

    def uniform(low, high):
        return low + (high - low) * torch.rand(count, generator=draw, dtype=torch.float64)

    reference = -uniform(0.01, 4.0)
    return ScoredSteps(
        logprobs=(
            reference + spread * torch.randn(count, generator=draw, dtype=torch.float64)
        ).requires_grad_(),
        reference=reference,
        tokens=torch.randint(1, 9, (count,), generator=draw).double(),
        value=uniform(0, 1),
        next_value=uniform(0, 1),
        outcome=torch.randint(0, 2, (count,), generator=draw).double(),
        steps_to_go=torch.randint(0, 6, (count,), generator=draw),
    )


def gradient(name, steps, config):
    loss, _ = ACTOR_LOSSES[name](steps, config)
    (found,) = torch.autograd.grad(loss, steps.logprobs)
    return found


def scale(steps, normalise, counted):
    if normalise == "step":
        return torch.ones_like(steps.tokens)
    return (
        steps.tokens
        if normalise == "token"
        else (steps.tokens * counted).sum() * torch.ones_like(steps.tokens)
    )


@pytest.mark.parametrize("normalise", ["token", "step", "batch"])
@pytest.mark.parametrize("seed", SEEDS)
def test_paper_gradient_is_two_beta_times_the_error(seed, normalise):
    steps, config = made(seed), WebRlLossConfig(beta=0.2 + seed / 10, normalise=normalise)
    per = scale(steps, normalise, torch.ones_like(steps.tokens))
    x = ((steps.logprobs - steps.reference) / per).detach()
    wanted = 2 * config.beta * (config.beta * x - paper_advantages(steps, 0.5)) / per / len(x)
    torch.testing.assert_close(gradient("webrl_paper", steps, config), wanted)


@pytest.mark.parametrize("normalise", ["token", "step", "batch"])
@pytest.mark.parametrize("seed", SEEDS)
def test_released_gradient_is_a_clipped_line_for_good_steps_and_nothing_for_bad(seed, normalise):
    steps = made(seed, spread=2.0)
    signs = released_advantages(steps, 0.9)
    good = signs > 0
    per = scale(steps, normalise, good.double())
    x = ((steps.logprobs - steps.reference) / per).detach()
    beta = torch.where((steps.reference / steps.tokens).exp() >= 0.8, 5.0, 1.0)  # for good steps
    beta = torch.minimum(beta, (1 / x).abs())
    wanted = torch.where(good, -(1 - beta * x).clamp(0, 1), 0.0) / per / len(x)
    found = gradient("webrl_released", steps, WebRlLossConfig(normalise=normalise))
    torch.testing.assert_close(found, wanted)
    assert 0 < good.sum() < len(good) and bool((found[~good] == 0).all())


@pytest.mark.parametrize("seed", SEEDS)
def test_imitation_gradients_are_minus_the_weight(seed):
    steps = made(seed)
    count = len(steps.outcome)
    config = WebRlLossConfig(temperature=0.3, weight_cap=5.0, threshold=0.1, lam=0.7)
    share = 0.7 ** steps.steps_to_go.double()
    gain = torch.where(steps.steps_to_go == 0, steps.outcome, steps.next_value) - steps.value
    weights = {
        "filtered_bc": steps.outcome,
        "awr": ((steps.outcome - steps.value) / 0.3).exp().clamp(max=5.0),
        "digirl": (share * steps.outcome + (1 - share) * gain > 0.1).double(),
    }
    for name, weight in weights.items():
        torch.testing.assert_close(gradient(name, steps, config), -weight / steps.tokens / count)


@pytest.mark.parametrize("seed", SEEDS)
def test_critic_gradient_is_softmax_minus_outcome_on_all_four_heads(seed):
    draw = torch.Generator().manual_seed(seed)
    heads = [
        torch.randn(32, 2, generator=draw, dtype=torch.float64, requires_grad=True)
        for _ in range(4)
    ]
    outcome = torch.randint(0, 2, (32,), generator=draw).double()
    loss = critic_loss((heads[0], heads[1]), (heads[2], heads[3]), outcome)
    target = torch.stack([1 - outcome, outcome], -1)
    for head, found in zip(heads, torch.autograd.grad(loss, heads), strict=True):
        torch.testing.assert_close(found, (head.softmax(-1) - target).detach() / 32)


def one(**changes):
    plain = {
        "logprobs": -1.0,
        "reference": -1.0,
        "tokens": 1.0,
        "value": 0.5,
        "next_value": 0.5,
        "outcome": 0.0,
        "steps_to_go": 2,
    }
    return ScoredSteps(**{name: torch.tensor([value]) for name, value in (plain | changes).items()})


def test_in_the_released_code_every_step_of_a_success_is_good_whatever_the_critic_says():
    assert released_advantages(one(outcome=1.0, value=0.99, next_value=0.01), 0.9).item() == 1.0
    assert released_advantages(one(value=0.5, next_value=0.56), 0.9).item() == 1.0
    assert released_advantages(one(value=0.5, next_value=0.54), 0.9).item() == pytest.approx(-0.6)


def test_in_the_paper_a_failed_step_is_pushed_down_and_the_end_has_no_future():
    assert paper_advantages(one(), 0.5).item() == pytest.approx(-0.25)
    assert paper_advantages(
        one(steps_to_go=0, outcome=1.0, next_value=0.9), 0.5
    ).item() == pytest.approx(0.5)


def test_in_the_paper_the_advantage_is_a_blend_of_one_step_and_the_whole_episode():
    middle = one(value=0.3, next_value=0.7, outcome=1.0, steps_to_go=3)
    # 0.25 * (0 + 0.7 - 0.3) + 0.75 * (1 - 0.3)
    assert paper_advantages(middle, 0.25).item() == pytest.approx(0.625)
    last = one(value=0.3, next_value=0.7, outcome=1.0, steps_to_go=0)
    assert paper_advantages(last, 0.25).item() == pytest.approx(0.7)


def test_in_the_released_code_the_line_between_good_and_bad_is_a_gain_of_a_twentieth():
    # An unsure judge: 0.1 on this step and, discounted, on 3 steps: 0.1 * (1 + 0.5 + 0.25) = 0.175
    unsure = {"outcome": 0.1, "steps_to_go": 2, "next_value": 0.0}
    assert (
        released_advantages(one(value=0.22, **unsure), 0.5).item() == 1.0
    )  # -0.22 - 0.05 + 0.1 + 0.175 > 0
    assert released_advantages(one(value=0.23, **unsure), 0.5).item() == pytest.approx(-0.6)


def test_figures_carry_no_gradient_and_say_the_ratio_and_the_advantage():
    steps = ScoredSteps(
        logprobs=torch.tensor([-1.0, -2.0], requires_grad=True),
        reference=torch.tensor([-2.0, -1.0]),
        tokens=torch.tensor([2.0, 4.0]),
        value=torch.tensor([0.5, 0.5]),
        next_value=torch.tensor([0.9, 0.1]),
        outcome=torch.tensor([1.0, 0.0]),
        steps_to_go=torch.tensor([1, 1]),
    )
    for name, loss in ACTOR_LOSSES.items():
        for normalise, scales in (("token", [2.0, 4.0]), ("step", [1.0, 1.0])):
            _, metrics = loss(steps, WebRlLossConfig(normalise=normalise))
            assert metrics["log_ratio"].tolist() == pytest.approx(
                [1 / scales[0], -1 / scales[1]]
            ), name
            assert not metrics["log_ratio"].requires_grad and not metrics["advantage"].requires_grad
    assert ACTOR_LOSSES["filtered_bc"](steps, WebRlLossConfig())[1]["advantage"].tolist() == [
        1.0,
        0.0,
    ]


def test_each_loss_has_the_value_of_its_formula():
    steps = ScoredSteps(
        logprobs=torch.tensor([-1.0, -2.0]),
        reference=torch.tensor([-2.0, -1.0]),
        tokens=torch.tensor([2.0, 4.0]),
        value=torch.tensor([0.5, 0.5]),
        next_value=torch.tensor([0.9, 0.1]),
        outcome=torch.tensor([1.0, 0.0]),
        steps_to_go=torch.tensor([1, 1]),
    )
    # A = 0.5 * 0.4 + 0.5 * 0.5 = 0.45 and 0.5 * -0.4 + 0.5 * -0.5 = -0.45; x = 0.5 and -0.25
    paper, _ = ACTOR_LOSSES["webrl_paper"](steps, WebRlLossConfig(beta=2.0))
    assert paper.item() == pytest.approx(((1.0 - 0.45) ** 2 + (-0.5 + 0.45) ** 2) / 2)
    # Confidence e^-1: beta 1. Error 1 - 0.5 = 0.5, half its square, on the good step alone.
    released, _ = ACTOR_LOSSES["webrl_released"](steps, WebRlLossConfig())
    assert released.item() == pytest.approx(0.125 / 2)
    bc, _ = ACTOR_LOSSES["filtered_bc"](steps, WebRlLossConfig())
    assert bc.item() == pytest.approx(0.5 / 2)
    # exp(+-0.5 / 0.2) is 12.18 and 0.082
    awr, _ = ACTOR_LOSSES["awr"](steps, WebRlLossConfig())
    assert awr.item() == pytest.approx((12.18249 * 0.5 + 0.0820850 * 0.5) / 2)
    capped, _ = ACTOR_LOSSES["awr"](steps, WebRlLossConfig(temperature=0.01))
    assert capped.item() == pytest.approx(20.0 * 0.5 / 2)
    # 0.5 * 1 + 0.5 * 0.4 = 0.7 is above 0.05, 0.5 * 0 + 0.5 * -0.4 is not
    digirl, _ = ACTOR_LOSSES["digirl"](steps, WebRlLossConfig())
    assert digirl.item() == pytest.approx(0.5 / 2)


def test_the_numbers_are_the_authors_unless_others_are_given():
    near = {"steps_to_go": 3, "next_value": 0.5}
    # beta 1 and lambda 1/2: x = 0.5, A = 0.5 * 0 + 0.5 * 0.5
    paper, _ = ACTOR_LOSSES["webrl_paper"](
        one(logprobs=-0.5, outcome=1.0, **near), WebRlLossConfig()
    )
    assert paper.item() == pytest.approx((0.5 - 0.25) ** 2)
    # gamma 0.9: 0.1 * (1 + 0.9 + 0.81) = 0.271; the line is at 0 - V - 0.05 + 0.1 + 0.271 = 0
    for value, sign in ((0.31, 1.0), (0.33, -0.6)):
        unsure = one(outcome=0.1, steps_to_go=2, next_value=0.0, value=value)
        figures = ACTOR_LOSSES["webrl_released"](unsure, WebRlLossConfig())[1]
        assert figures["advantage"].item() == pytest.approx(sign)
    # digirl imitates above 0.05: half of the outcome, which is 0, and half of the gain
    for gain, weight in ((0.14, 1.0), (0.08, 0.0)):
        step = one(steps_to_go=1, value=0.5, next_value=0.5 + gain)
        assert ACTOR_LOSSES["digirl"](step, WebRlLossConfig())[1]["advantage"].item() == weight


def test_what_lies_on_a_line_is_good_in_the_released_code_and_not_imitated_by_digirl():
    assert released_advantages(one(value=0.0, next_value=0.05), 0.9).item() == 1.0
    last = one(steps_to_go=0, outcome=0.5, value=0.5)
    assert (
        ACTOR_LOSSES["digirl"](last, WebRlLossConfig(threshold=0.5))[1]["advantage"].item() == 0.0
    )


def test_imitation_never_teaches_the_critic():
    steps = one(logprobs=-1.0, outcome=1.0)
    steps.value.requires_grad_()
    steps.logprobs.requires_grad_()
    loss, _ = ACTOR_LOSSES["awr"](steps, WebRlLossConfig())
    found = torch.autograd.grad(loss, [steps.logprobs, steps.value], allow_unused=True)
    assert found[0].item() < 0 and found[1] is None


def test_a_batch_without_a_good_step_teaches_nothing_and_divides_by_nothing():
    steps = one(logprobs=-1.5)
    loss, metrics = ACTOR_LOSSES["webrl_released"](steps, WebRlLossConfig(normalise="batch"))
    assert loss.item() == 0.0 and metrics["log_ratio"].item() == -0.5


@pytest.mark.parametrize(("confidence", "beta"), [(0.79, 1.0), (0.81, 5.0)])
def test_the_released_loss_ties_an_action_down_where_the_reference_was_sure(confidence, beta):
    reference = 3 * math.log(confidence)  # three tokens of this confidence each
    steps = one(reference=reference, logprobs=reference + 0.3, tokens=3.0, outcome=1.0)
    loss, _ = ACTOR_LOSSES["webrl_released"](steps, WebRlLossConfig())
    assert loss.item() == pytest.approx(0.5 * (1 - beta * 0.1) ** 2 / beta, rel=1e-4)


def test_no_gradient_reaches_the_strength_that_the_released_loss_chooses():
    """Beyond where the error would turn round beta is 1/|x|.

    Were it not held fixed, the loss would pull twice.
    """
    steps = ScoredSteps(
        logprobs=torch.tensor([1.5], requires_grad=True),
        reference=torch.tensor([-0.5]),
        tokens=torch.tensor([1.0]),
        value=torch.tensor([0.0]),
        next_value=torch.tensor([0.0]),
        outcome=torch.tensor([1.0]),
        steps_to_go=torch.tensor([0]),
    )
    (found,) = torch.autograd.grad(
        ACTOR_LOSSES["webrl_released"](steps, WebRlLossConfig())[0], steps.logprobs
    )
    assert found.item() == pytest.approx(0.0)
    low = ScoredSteps(**{**vars(steps), "logprobs": torch.tensor([-2.5], requires_grad=True)})
    (found,) = torch.autograd.grad(
        ACTOR_LOSSES["webrl_released"](low, WebRlLossConfig())[0], low.logprobs
    )
    # x = -2, beta = 1/2: the error is 2, beyond the curve's end, and the slope -beta / beta
    assert found.item() == pytest.approx(-1.0)


def test_the_critic_s_loss_is_the_sum_of_its_heads_cross_entropies():
    outcome = torch.tensor([1.0, 0.0])
    even, sure = torch.zeros(2, 2), torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    wanted = math.log(2) + (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2))) / 2
    assert critic_loss((even, sure), None, outcome).item() == pytest.approx(wanted)
    assert critic_loss((even, sure), (even, even), outcome).item() == pytest.approx(
        wanted + 2 * math.log(2)
    )


def test_the_lower_head_counts():
    high, low = torch.tensor([[0.0, 3.0]]), torch.tensor([[0.0, 0.0]])
    assert pessimistic_value(high, low).item() == pytest.approx(0.5)
    assert pessimistic_value(low, high).item() == pytest.approx(0.5)
    some = torch.tensor([[[0.0, 0.0], [0.0, 2.0]], [[2.0, 0.0], [1.0, 1.0]]])
    sure = 1 / (1 + math.exp(-2.0))  # each pair of logits for itself, whatever stands around it
    assert pessimistic_value(some, some).tolist() == [
        pytest.approx([0.5, sure]),
        pytest.approx([1 - sure, 0.5]),
    ]


def test_without_a_discount_the_released_signs_are_the_limit():
    for seed in SEEDS:
        steps = made(seed)
        assert released_advantages(steps, 1.0).equal(released_advantages(steps, 0.999))
        assert gradient("webrl_released", steps, WebRlLossConfig(gamma=1.0)).abs().sum() > 0


@pytest.mark.parametrize(
    "changes",
    [{"gamma": 0.0}, {"gamma": 1.1}, {"temperature": 0.0}, {"beta": 0.0}, {"batch": 0}],
)
def test_numbers_that_train_nothing_are_refused(changes):
    with pytest.raises(ConfigError, match=f"learner.{next(iter(changes))}"):
        WebRlUpdateConfig(**changes)
