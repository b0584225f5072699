"""Off-policy actor losses on steps of judged episodes: WebRL as published and as released, and its rivals.

`webrl_paper` is the squared error between beta times the log-ratio and a signed advantage: bad steps are pushed down.
`webrl_released` is what the authors' code does: an advantage of +1 or -0.6 whose negative half is masked, so nothing is
ever pushed down. `filtered_bc`, `awr` and `digirl` imitate a choice of steps. All are means over the given steps.
    loss, figures = ACTOR_LOSSES["webrl_paper"](steps, Knobs(beta=0.2)); loss.backward()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Figures = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class JudgedSteps:
    """Aligned tensors, one entry per step. Only `logprobs` carries a gradient."""

    logprobs: Tensor
    """log pi(a|s), summed over the tokens of the action."""
    reference: Tensor
    """The same under the actor as it was when the phase began."""
    tokens: Tensor
    """How many tokens the action has; 1 for a policy that points."""
    value: Tensor
    """V(s): the chance of success as the critic sees it."""
    next_value: Tensor
    """V(s') as the critic says it, also after the last step."""
    outcome: Tensor
    """1 when the episode succeeded, 0 when not; between when a judge is unsure."""
    steps_to_go: Tensor
    """Steps of the episode after this one; 0 on the last."""


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Numbers of the losses; the defaults are the authors'."""

    beta: float = 1.0
    """`webrl_paper`: how strongly the log-ratio is tied down; one phase moves an action by at most 1/beta nats."""
    lam: float = 0.5
    """`webrl_paper`: share of the one-step advantage. `digirl`: how fast the outcome fades for earlier steps."""
    gamma: float = 0.9
    """`webrl_released`: discount of its returns."""
    normalise: Literal["token", "step", "batch"] = "token"
    """The log-ratio per token, per step, or (released code, batches above one) over the batch's positive tokens."""
    temperature: float = 0.2
    """`awr`: advantages are divided by this before exp."""
    weight_cap: float = 20.0
    """`awr`: no step weighs more."""
    threshold: float = 0.05
    """`digirl`: steps above this advantage are imitated."""


ActorLoss = Callable[[JudgedSteps, Knobs], tuple[Tensor, Figures]]


def paper_advantages(steps: JudgedSteps, lam: float) -> Tensor:
    """A = lam (r + V(s') - V(s)) + (1 - lam)(r_T - V(s)); the reward and the end come with the last step."""
    last = steps.steps_to_go == 0
    reward = torch.where(last, steps.outcome, 0.0)
    after = torch.where(last, 0.0, steps.next_value)
    return lam * (reward + after - steps.value) + (1 - lam) * (steps.outcome - steps.value)


def webrl_paper(steps: JudgedSteps, knobs: Knobs) -> tuple[Tensor, Figures]:
    """Mean of (beta log(pi / pi_ref) - A)^2. Gradient on a step: 2 beta (beta x - A) / N."""
    advantages = paper_advantages(steps, knobs.lam)
    ratio = _ratio(steps, torch.ones_like(advantages), knobs.normalise)
    return ((knobs.beta * ratio - advantages) ** 2).mean(), {"advantage": advantages, "log_ratio": ratio.detach()}


def released_advantages(steps: JudgedSteps, gamma: float) -> Tensor:
    """The outcome is paid on every step and summed up again (discounted); then only the sign is kept: +1 or -0.6."""
    discounted = steps.outcome * (1 - gamma ** (steps.steps_to_go + 1.0)) / (1 - gamma)
    raw = steps.next_value - steps.value - 0.05 + steps.outcome + discounted
    return torch.where(raw.clamp(-1, 1) >= 0, 1.0, -0.6)


def webrl_released(steps: JudgedSteps, knobs: Knobs) -> tuple[Tensor, Figures]:
    """Gradient on the log-ratio of a positive step: -clip(1 - beta x, 0, 1) / N; on a negative one: none."""
    signs = released_advantages(steps, knobs.gamma)
    positive = (signs > 0).float()
    ratio = _ratio(steps, positive, knobs.normalise)
    confidence = (steps.reference / steps.tokens).exp()
    tight = (signs > 0) & (confidence >= 0.8) | (signs < 0) & (confidence < 0.9)
    beta = torch.where(tight, 5.0, 1.0)
    beta = torch.minimum(beta, (signs / ratio.detach()).abs())  # never beyond where the error would turn round
    error = functional.smooth_l1_loss(beta * ratio, signs, reduction="none")
    return (positive * error / beta).mean(), {"advantage": signs, "log_ratio": ratio.detach()}


def filtered_bc(steps: JudgedSteps, knobs: Knobs) -> tuple[Tensor, Figures]:
    """Imitate every step of the episodes that succeeded."""
    return _imitate(steps, steps.outcome, knobs)


def awr(steps: JudgedSteps, knobs: Knobs) -> tuple[Tensor, Figures]:
    """Imitate everything, weighted by exp(A / temperature): what went worse than expected hardly counts."""
    advantages = steps.outcome - steps.value
    return _imitate(steps, (advantages / knobs.temperature).exp().clamp(max=knobs.weight_cap), knobs)


def digirl(steps: JudgedSteps, knobs: Knobs) -> tuple[Tensor, Figures]:
    """Imitate the steps above a threshold of DigiRL's advantage: the outcome near the end, the critic far from it."""
    share = knobs.lam**steps.steps_to_go
    gain = torch.where(steps.steps_to_go == 0, steps.outcome, steps.next_value) - steps.value
    advantages = share * steps.outcome + (1 - share) * gain
    return _imitate(steps, (advantages > knobs.threshold).float(), knobs)


ACTOR_LOSSES: dict[str, ActorLoss] = {
    "webrl_paper": webrl_paper,
    "webrl_released": webrl_released,
    "filtered_bc": filtered_bc,
    "awr": awr,
    "digirl": digirl,
}


def _imitate(steps: JudgedSteps, weights: Tensor, knobs: Knobs) -> tuple[Tensor, Figures]:
    scale = steps.tokens if knobs.normalise == "token" else torch.ones_like(steps.logprobs)
    ratio = (steps.logprobs - steps.reference).detach() / scale
    return -(weights.detach() * steps.logprobs / scale).mean(), {"advantage": weights, "log_ratio": ratio}


def _ratio(steps: JudgedSteps, counted: Tensor, normalise: str) -> Tensor:
    difference = steps.logprobs - steps.reference
    if normalise == "step":
        return difference
    if normalise == "token":
        return difference / steps.tokens
    return difference / (steps.tokens * counted).sum().clamp(min=1)


# --- the critic -------------------------------------------------------------------------------------------------------


def pessimistic_value(first: Tensor, second: Tensor) -> Tensor:
    """The lower of two heads' chances of success; logits are [..., 2] for failure and success."""
    return torch.minimum(first.softmax(-1)[..., 1], second.softmax(-1)[..., 1])


def critic_loss(heads: tuple[Tensor, Tensor], heads_after: tuple[Tensor, Tensor] | None, outcome: Tensor) -> Tensor:
    """Cross-entropy of both heads with the outcome, at each state and (released code) at the state after it."""
    wanted = torch.stack([1 - outcome, outcome], -1)
    logits = [*heads, *(heads_after or ())]
    return sum((functional.cross_entropy(one, wanted) for one in logits), start=torch.zeros(()))
