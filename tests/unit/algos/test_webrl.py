"""Each loss against its closed-form gradient on random inputs, and the known oddities of the released one."""

import pytest

torch = pytest.importorskip("torch")
from terrella.algos.webrl import (
    ACTOR_LOSSES,
    JudgedSteps,
    Knobs,
    critic_loss,
    paper_advantages,
    pessimistic_value,
    released_advantages,
)  # fmt: skip

SEEDS = range(20)


def made(seed, count=64, spread=0.5):
    draw = torch.Generator().manual_seed(seed)

    def uniform(low, high):
        return low + (high - low) * torch.rand(count, generator=draw, dtype=torch.float64)

    reference = -uniform(0.01, 4.0)
    return JudgedSteps(
        logprobs=(reference + spread * torch.randn(count, generator=draw, dtype=torch.float64)).requires_grad_(),
        reference=reference, tokens=torch.randint(1, 9, (count,), generator=draw).double(),
        value=uniform(0, 1), next_value=uniform(0, 1),
        outcome=torch.randint(0, 2, (count,), generator=draw).double(),
        steps_to_go=torch.randint(0, 6, (count,), generator=draw),
    )  # fmt: skip


def gradient(name, steps, knobs):
    loss, _ = ACTOR_LOSSES[name](steps, knobs)
    (found,) = torch.autograd.grad(loss, steps.logprobs)
    return found


def scale(steps, normalise, counted):
    if normalise == "step":
        return torch.ones_like(steps.tokens)
    return steps.tokens if normalise == "token" else (steps.tokens * counted).sum() * torch.ones_like(steps.tokens)


@pytest.mark.parametrize("normalise", ["token", "step", "batch"])
@pytest.mark.parametrize("seed", SEEDS)
def test_paper_gradient_is_two_beta_times_the_error(seed, normalise):
    steps, knobs = made(seed), Knobs(beta=0.2 + seed / 10, normalise=normalise)
    per = scale(steps, normalise, torch.ones_like(steps.tokens))
    x = ((steps.logprobs - steps.reference) / per).detach()
    wanted = 2 * knobs.beta * (knobs.beta * x - paper_advantages(steps, 0.5)) / per / len(x)
    torch.testing.assert_close(gradient("webrl_paper", steps, knobs), wanted)


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
    found = gradient("webrl_released", steps, Knobs(normalise=normalise))
    torch.testing.assert_close(found, wanted)
    assert 0 < good.sum() < len(good) and bool((found[~good] == 0).all())


@pytest.mark.parametrize("seed", SEEDS)
def test_imitation_gradients_are_minus_the_weight(seed):
    steps = made(seed)
    count = len(steps.outcome)
    knobs = Knobs(temperature=0.3, weight_cap=5.0, threshold=0.1, lam=0.7)
    share = 0.7 ** steps.steps_to_go.double()
    gain = torch.where(steps.steps_to_go == 0, steps.outcome, steps.next_value) - steps.value
    weights = {
        "filtered_bc": steps.outcome,
        "awr": ((steps.outcome - steps.value) / 0.3).exp().clamp(max=5.0),
        "digirl": (share * steps.outcome + (1 - share) * gain > 0.1).double(),
    }
    for name, weight in weights.items():
        torch.testing.assert_close(gradient(name, steps, knobs), -weight / steps.tokens / count)


@pytest.mark.parametrize("seed", SEEDS)
def test_critic_gradient_is_softmax_minus_outcome_on_all_four_heads(seed):
    draw = torch.Generator().manual_seed(seed)
    heads = [torch.randn(32, 2, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    outcome = torch.randint(0, 2, (32,), generator=draw).double()
    loss = critic_loss((heads[0], heads[1]), (heads[2], heads[3]), outcome)
    target = torch.stack([1 - outcome, outcome], -1)
    for head, found in zip(heads, torch.autograd.grad(loss, heads), strict=True):
        torch.testing.assert_close(found, (head.softmax(-1) - target).detach() / 32)


def one(**changes):
    plain = {"logprobs": -1.0, "reference": -1.0, "tokens": 1.0, "value": 0.5, "next_value": 0.5, "outcome": 0.0,
             "steps_to_go": 2}  # fmt: skip
    return JudgedSteps(**{name: torch.tensor([value]) for name, value in (plain | changes).items()})


def test_in_the_released_code_every_step_of_a_success_is_good_whatever_the_critic_says():
    assert released_advantages(one(outcome=1.0, value=0.99, next_value=0.01), 0.9).item() == 1.0
    assert released_advantages(one(value=0.5, next_value=0.56), 0.9).item() == 1.0
    assert released_advantages(one(value=0.5, next_value=0.54), 0.9).item() == pytest.approx(-0.6)


def test_in_the_paper_a_failed_step_is_pushed_down_and_the_end_has_no_future():
    assert paper_advantages(one(), 0.5).item() == pytest.approx(-0.25)
    assert paper_advantages(one(steps_to_go=0, outcome=1.0, next_value=0.9), 0.5).item() == pytest.approx(0.5)


def test_the_lower_head_counts():
    high, low = torch.tensor([[0.0, 3.0]]), torch.tensor([[0.0, 0.0]])
    assert pessimistic_value(high, low).item() == pytest.approx(0.5)
