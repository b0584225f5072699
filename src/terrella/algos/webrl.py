"""Off-policy actor losses on steps of scored episodes: WebRL (two versions) and its baselines.

`webrl_paper` is the squared error between beta times the log-ratio and a signed advantage, so bad
steps are pushed down. `webrl_released` follows the authors' code: an advantage of +1 or -0.6 whose
negative part is masked, so nothing is ever pushed down. `filtered_bc`, `awr` and `digirl` imitate
selected or weighted steps. Every loss is a mean over the given steps, or their weighted sum.
    loss, metrics = ACTOR_LOSSES["webrl_paper"](steps, WebRlLossConfig(beta=0.2))
    loss.backward()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from terrella.algos.webrl_config import WebRlLossConfig

Metrics = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class ScoredSteps:
    """Aligned tensors, one entry per step. Only `logprobs` carries a gradient."""

    logprobs: Tensor
    """log pi(a|s), summed over the tokens of the action."""
    reference: Tensor
    """The same under the actor at the start of the phase."""
    tokens: Tensor
    """Number of tokens of the action; 1 for a pointer policy."""
    value: Tensor
    """V(s): the critic's probability of success."""
    next_value: Tensor
    """V(s') as the critic predicts it, also after the last step."""
    outcome: Tensor
    """1 when the episode succeeded, 0 when not; in between when the outcome model is unsure."""
    steps_to_go: Tensor
    """Number of steps of the episode after this one; 0 on the last."""
    weights: Tensor | None = None
    """Each step's share of the loss, so that parts of a batch add up; None makes it a mean."""


ActorLoss = Callable[[ScoredSteps, WebRlLossConfig], tuple[Tensor, Metrics]]


def paper_advantages(steps: ScoredSteps, lam: float) -> Tensor:
    """A = lam (r + V(s') - V(s)) + (1 - lam)(r_T - V(s)).

    r is the outcome on the last step and 0 before; V(s') is 0 after the last step.
    """
    last = steps.steps_to_go == 0
    reward = torch.where(last, steps.outcome, 0.0)
    after = torch.where(last, 0.0, steps.next_value)
    return lam * (reward + after - steps.value) + (1 - lam) * (steps.outcome - steps.value)


def webrl_paper(steps: ScoredSteps, config: WebRlLossConfig) -> tuple[Tensor, Metrics]:
    """Mean of (beta log(pi / pi_ref) - A)^2. Gradient on a step: 2 beta (beta x - A) / N."""
    advantages = paper_advantages(steps, config.lam)
    ratio = _ratio(steps, torch.ones_like(advantages), config.normalise)
    return _reduced((config.beta * ratio - advantages) ** 2, steps.weights), {
        "advantage": advantages,
        "log_ratio": ratio.detach(),
    }


def released_advantages(steps: ScoredSteps, gamma: float) -> Tensor:
    """Signs of the authors' advantage: +1 or -0.6.

    Their code adds the outcome on every step and once more as a discounted sum, then keeps only the
    sign.
    """
    count = steps.steps_to_go + 1.0
    # The sum of a geometric series; without a discount it is the number of its terms.
    series = count if gamma == 1 else (1 - gamma**count) / (1 - gamma)
    discounted = steps.outcome * series
    raw = steps.next_value - steps.value - 0.05 + steps.outcome + discounted
    return torch.where(raw.clamp(-1, 1) >= 0, 1.0, -0.6)


def webrl_released(steps: ScoredSteps, config: WebRlLossConfig) -> tuple[Tensor, Metrics]:
    """Smooth L1 error between beta times the log-ratio and the sign, on positive steps only.

    Gradient on the log-ratio of a positive step: -clip(1 - beta x, 0, 1) / N; of a negative one: 0.
    """
    signs = released_advantages(steps, config.gamma)
    positive = (signs > 0).float()
    ratio = _ratio(steps, positive, config.normalise)
    confidence = (steps.reference / steps.tokens).exp()
    tight = (signs > 0) & (confidence >= 0.8) | (signs < 0) & (confidence < 0.9)
    beta = torch.where(tight, 5.0, 1.0)
    # Never so large that the error would change its sign.
    beta = torch.minimum(beta, (signs / ratio.detach()).abs())
    error = functional.smooth_l1_loss(beta * ratio, signs, reduction="none")
    return _reduced(positive * error / beta, steps.weights), {
        "advantage": signs,
        "log_ratio": ratio.detach(),
    }


def filtered_bc(steps: ScoredSteps, config: WebRlLossConfig) -> tuple[Tensor, Metrics]:
    """Imitate every step of the episodes that succeeded."""
    return _imitate(steps, steps.outcome, config)


def awr(steps: ScoredSteps, config: WebRlLossConfig) -> tuple[Tensor, Metrics]:
    """Imitate every step, weighted by exp(A / temperature): bad steps hardly count."""
    advantages = steps.outcome - steps.value
    return _imitate(
        steps, (advantages / config.temperature).exp().clamp(max=config.weight_cap), config
    )


def digirl(steps: ScoredSteps, config: WebRlLossConfig) -> tuple[Tensor, Metrics]:
    """Imitate the steps whose DigiRL advantage is above a threshold.

    The advantage is mostly the outcome near the end of an episode and mostly the critic's one-step
    gain far from it.
    """
    share = config.lam**steps.steps_to_go
    gain = torch.where(steps.steps_to_go == 0, steps.outcome, steps.next_value) - steps.value
    advantages = share * steps.outcome + (1 - share) * gain
    return _imitate(steps, (advantages > config.threshold).float(), config)


ACTOR_LOSSES: dict[str, ActorLoss] = {
    "webrl_paper": webrl_paper,
    "webrl_released": webrl_released,
    "filtered_bc": filtered_bc,
    "awr": awr,
    "digirl": digirl,
}


def _imitate(
    steps: ScoredSteps, weights: Tensor, config: WebRlLossConfig
) -> tuple[Tensor, Metrics]:
    scale = steps.tokens if config.normalise == "token" else torch.ones_like(steps.logprobs)
    ratio = (steps.logprobs - steps.reference).detach() / scale
    return -_reduced(weights.detach() * steps.logprobs / scale, steps.weights), {
        "advantage": weights,
        "log_ratio": ratio,
    }


def _reduced(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.mean() if weights is None else (values * weights).sum()


def _ratio(steps: ScoredSteps, counted: Tensor, normalise: str) -> Tensor:
    difference = steps.logprobs - steps.reference
    if normalise == "step":
        return difference
    if normalise == "token":
        return difference / steps.tokens
    return difference / (steps.tokens * counted).sum().clamp(min=1)


# --- the critic -----------------------------------------------------------------------------------


def pessimistic_value(first: Tensor, second: Tensor) -> Tensor:
    """The lower of two heads' success probabilities; logits are [..., 2] (failure, success)."""
    return torch.minimum(first.softmax(-1)[..., 1], second.softmax(-1)[..., 1])


def critic_loss(
    heads: tuple[Tensor, ...],
    heads_after: tuple[Tensor, ...] | None,
    outcome: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of all heads with the outcome; a mean over states, or their weighted sum.

    At each state and, as in the released code, at the state after it.
    """
    target = torch.stack([1 - outcome, outcome], -1)
    logits = [*heads, *(heads_after or ())]
    errors = [functional.cross_entropy(head, target, reduction="none") for head in logits]
    return sum((_reduced(error, weights) for error in errors), start=torch.zeros(()))
