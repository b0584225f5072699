"""Losses by name: sums that add up, the same numbers as the functions that they call."""

import pytest

torch = pytest.importorskip("torch")

from terrella.algos.named_losses import LOSSES, find_loss
from terrella.algos.webrl import ACTOR_LOSSES, ScoredSteps, critic_loss
from terrella.algos.webrl_config import WebRlLossConfig
from terrella.core.errors import ConfigError

LENGTHS = (3, 1, 4)
EXAMPLES_M = torch.tensor([0.0] * 3 + [1.0] + [2.0] * 4)


def made_columns():
    torch.manual_seed(0)
    total = sum(LENGTHS)
    columns = {name: -torch.rand(total) for name in ("old", "reference", "sampled")}
    columns |= {name: torch.rand(total) for name in ("advantage", "return", "weight")}
    by_example = {
        "value": torch.rand(3),
        "next_value": torch.rand(3),
        "outcome": torch.tensor([1.0, 0.0, 1.0]),
        "label": torch.tensor([1.0, 0.0, 1.0]),
        "steps_to_go": torch.tensor([2.0, 1.0, 0.0]),
    }
    repeats = torch.tensor(LENGTHS)
    columns |= {name: values.repeat_interleave(repeats) for name, values in by_example.items()}
    return {**columns, "example": EXAMPLES_M}


def part(columns, start, end):
    return {name: values[start:end] for name, values in columns.items()}


@pytest.mark.parametrize("name", LOSSES)
def test_parts_add_up_and_weights_scale(name):
    columns = made_columns()
    outputs = -torch.rand(len(EXAMPLES_M))
    named = find_loss(name)
    settings = named.settings({})
    whole, metrics = named.compute(outputs, columns, settings)
    cut = LENGTHS[0]  # between two examples
    parts = [
        named.compute(outputs[start:end], part(columns, start, end), settings)[0]
        for start, end in ((0, cut), (cut, None))
    ]
    torch.testing.assert_close(sum(parts), whole)
    doubled = {**columns, "weight": 2 * columns["weight"]}
    torch.testing.assert_close(named.compute(outputs, doubled, settings)[0], 2 * whole)
    assert set(metrics) <= set(named.metrics)
    assert all(len(values) in (3, len(outputs)) for values in metrics.values())


@pytest.mark.parametrize("name", ACTOR_LOSSES)
@pytest.mark.parametrize("normalise", ["token", "step"])
def test_webrl_on_tokens_is_webrl_on_steps(name, normalise):
    columns = made_columns()
    columns["weight"] = torch.full_like(columns["weight"], 1 / len(LENGTHS))  # a mean over steps
    outputs = (-torch.rand(len(EXAMPLES_M))).requires_grad_()
    named = find_loss(name)
    settings = named.settings({"normalise": normalise, "beta": 0.3})
    loss, _ = named.compute(outputs, columns, settings)

    def summed(values):
        return torch.stack([each.sum() for each in values.split(LENGTHS)])

    first = torch.tensor([0, 3, 4])
    steps = ScoredSteps(
        logprobs=summed(outputs),
        reference=summed(columns["reference"]),
        tokens=torch.tensor(LENGTHS),
        value=columns["value"][first],
        next_value=columns["next_value"][first],
        outcome=columns["outcome"][first],
        steps_to_go=columns["steps_to_go"][first],
    )
    expected, _ = ACTOR_LOSSES[name](steps, WebRlLossConfig(normalise=normalise, beta=0.3))
    torch.testing.assert_close(loss, expected)


def test_the_critic_of_webrl_reads_the_value_as_log_odds():
    columns = made_columns()
    values = torch.randn(len(EXAMPLES_M))
    loss, _ = find_loss("webrl_critic").compute(values, columns, {})
    logits = torch.stack([values * 0, values], -1)
    each = [
        critic_loss((logits[n : n + 1],), None, columns["outcome"][n : n + 1])
        for n in range(len(values))
    ]
    torch.testing.assert_close(loss, (torch.stack(each) * columns["weight"]).sum())
    bce, _ = find_loss("bce").compute(values, columns, {})
    torch.testing.assert_close(loss, bce)


def test_what_does_not_exist_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"no loss 'dpo'.*\n.*cross_entropy, policy"):
        find_loss("dpo")
    with pytest.raises(ConfigError, match=r"bce is for a value head.*\n.*cross_entropy"):
        find_loss("bce", "token")
    policy = find_loss("policy")
    with pytest.raises(ConfigError, match=r"no knob clip\b.*\n.*clip_low, clip_high"):
        policy.settings({"clip": 0.1})
    present = frozenset({"advantage"})
    assert policy.reads(present, policy.settings({})) == ["advantage"]
    with pytest.raises(ConfigError, match="no column reference"):
        policy.reads(present, policy.settings({"kl": 0.1}))
    with pytest.raises(ConfigError, match="losses must add up"):
        webrl = find_loss("webrl_paper")
        webrl.compute(torch.zeros(8), made_columns(), webrl.settings({"normalise": "batch"}))
