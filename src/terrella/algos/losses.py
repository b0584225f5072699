"""Losses on the tokens that the model wrote, each with its diagnostics.

`policy_loss` is the clipped surrogate with a choice of normalisation, `value_loss` is the critic's
loss and `k3` the KL estimate. Tokens that the world wrote are not in the inputs: they carry no
policy gradient.
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
    """Under the current policy, with gradient."""
    old_logprobs: Tensor
    """Under the policy in the denominator of the ratio, without gradient."""
    advantages: Tensor
    weights: Tensor
    """Each token's share of the loss (`token_scales`).

    Times an importance weight where the sampler's probabilities differ from the trainer's.
    """
    reference_logprobs: Tensor | None = None
    episodes: Tensor | None = None
    """The episode's index per token, where an episode has one ratio instead of one per token."""
    entropy: Tensor | None = None
    """Entropy of the current policy at each token, with gradient; None without a bonus."""


def policy_loss(
    inputs: LossInputs,
    *,
    clip_low: float,
    clip_high: float,
    kl: float,
    entropy_bonus: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate, plus a KL penalty where there is a reference, less the entropy's bonus.

    Returns the loss and its diagnostics, one value per token.
    """
    log_ratio = inputs.logprobs - inputs.old_logprobs
    if inputs.episodes is not None:
        log_ratio = _episode_sums(log_ratio, inputs.episodes)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    per_token = -torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages)
    metrics = {"clip_share": (ratio != clipped).float()}
    if inputs.reference_logprobs is not None:
        divergence = k3(inputs.logprobs, inputs.reference_logprobs)
        per_token = per_token + kl * divergence
        metrics["kl"] = divergence.detach()
    if inputs.entropy is not None:
        per_token = per_token - entropy_bonus * inputs.entropy
    return (per_token * inputs.weights).sum(), metrics


def _episode_sums(values_M: Tensor, episodes_M: Tensor) -> Tensor:
    """The sum over its episode, on every token. [M]."""
    count = int(episodes_M.max()) + 1 if len(episodes_M) else 0
    return values_M.new_zeros(count).index_add(0, episodes_M, values_M)[episodes_M]


def token_scales(
    normalise: str, *, written: int, episodes: float, tokens: float, longest: int
) -> float:
    """Weight of each token of an episode, such that micro-batch and rank losses simply add up.

    `written` is the number of tokens that the model wrote in the episode; `episodes` and `tokens`
    count the whole batch over all ranks. "episode" is GRPO's mean of means, "token" is DAPO's mean
    over tokens, "constant" is Dr. GRPO's fixed length (`longest`).
    """
    if normalise == "episode":
        return 1.0 / (max(written, 1) * episodes)
    if normalise == "token":
        return 1.0 / tokens
    return 1.0 / (episodes * longest)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Half the squared error of the critic, per token.

    PPO's clipping: the larger of the error and the error of the value clipped around its old one.
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)


def importance_weights(trained: Tensor, sampled: Tensor, *, cap: float) -> Tensor:
    """Probability ratio of trainer to sampler for each sampled token, truncated at `cap`."""
    return (trained - sampled).exp().clamp(max=cap)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Unbiased, non-negative estimate of KL(policy || reference), per token."""
    difference = reference - logprobs
    return torch.expm1(difference) - difference
