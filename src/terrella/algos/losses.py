"""Losses: one record in, one scalar and its diagnostics out.

`policy_loss` is the clipped surrogate with a choice of normalisation; `value_loss` the critic's; `k3` the KL estimate.
Only tokens that the model wrote are here at all: the world's carry no gradient.
    loss, metrics = policy_loss(LossInputs(...), clip_low=0.2, clip_high=0.28, kl=0.0)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Aligned tensors, one entry per token that the model wrote."""

    logprobs: Tensor
    """Of the policy now, with gradient."""
    old_logprobs: Tensor
    """Of the policy that the ratio is against, without."""
    advantages: Tensor
    weights: Tensor
    """Share of the loss (`token_scales`), times an importance weight if the sampler differs from the trainer."""
    reference_logprobs: Tensor | None = None


def policy_loss(
    inputs: LossInputs, *, clip_low: float, clip_high: float, kl: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate, plus a KL penalty where there is a reference; and per token what was clipped."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    per_token = -torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)
    metrics = {"clip_share": (ratio != clipped).float()}
    if inputs.reference_logprobs is not None:
        divergence = k3(inputs.logprobs, inputs.reference_logprobs)
        per_token = per_token + kl * divergence
        metrics["kl"] = divergence.detach()
    return (per_token * inputs.weights).sum(), metrics


def token_scales(normalise: str, *, written: int, episodes: float, tokens: float, longest: int) -> float:
    """The share of each token of an episode, so that losses of micro-batches and ranks simply add up.

    `episodes` and `tokens` count the whole batch over all ranks: "episode" is GRPO's mean of means, "token" is DAPO's
    mean over tokens, "constant" is Dr. GRPO's fixed length.
    """
    if normalise == "episode":
        return 1.0 / (written * episodes)
    if normalise == "token":
        return 1.0 / tokens
    return 1.0 / (episodes * longest)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Half the squared error of the critic per token, clipped around its old value (the worse of the two counts)."""
    near = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (near - returns) ** 2)


def importance_weights(trained: Tensor, sampled: Tensor, *, cap: float) -> Tensor:
    """How much likelier the trainer finds a token than the sampler that drew it, truncated at `cap`."""
    return (trained - sampled).exp().clamp(max=cap)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Unbiased, never negative estimate of KL(policy || reference), per token."""
    difference = reference - logprobs
    return torch.expm1(difference) - difference
