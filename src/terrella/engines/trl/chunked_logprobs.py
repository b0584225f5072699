"""Log-probabilities and entropies of targets, in memory that a large vocabulary does not multiply.

Logits are [targets, vocabulary]: with 152,000 words, 1,000 targets are 0.6 GB in fp32. Plain
autograd holds several such tensors at once. Above `CHUNK` targets, chunk after chunk is computed,
nothing is kept but the logits, and the backward pass computes a chunk again. So it is wherever the
entropy has a gradient, whose formula is written out.
    logprobs_M, entropy_M = logprobs_of(logits_MV, targets_M)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 1024
"""Targets that are computed at a time."""


def logprobs_of(
    logits_MV: Tensor,
    targets_M: Tensor,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probability [M] of each target, and the entropy [M] of its distribution."""
    if len(logits_MV) > CHUNK or (entropy_gradient and len(logits_MV)):
        logprobs, entropy = _Chunked.apply(logits_MV, targets_M, temperature, entropy_gradient)  # type: ignore[no-untyped-call]
        return logprobs, entropy
    scores = torch.log_softmax(scaled(logits_MV, temperature), dim=-1)
    with torch.no_grad():
        entropy = _entropy(scores)
    return _at(scores, targets_M), entropy


def scaled(logits: Tensor, temperature: float) -> Tensor:
    """Logits in fp32 as they are sampled from; no copy where nothing changes."""
    logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature


def _finite(scores: Tensor) -> Tensor:
    """A token that is never written adds 0 to an entropy, and 0 * -inf is nan."""
    return scores.clamp(min=torch.finfo(scores.dtype).min)


def _entropy(scores: Tensor) -> Tensor:
    return -(scores.exp() * _finite(scores)).sum(-1)


def _at(scores: Tensor, targets: Tensor) -> Tensor:
    return scores.gather(-1, targets[:, None])[:, 0]


class _Chunked(torch.autograd.Function):
    """`logprobs_of` chunk by chunk. The entropy has a gradient only where it is asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_MV: Tensor,
        targets_M: Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = [], []
        for first in range(0, len(logits_MV), CHUNK):
            part = slice(first, first + CHUNK)
            scores = torch.log_softmax(scaled(logits_MV[part], temperature), dim=-1)
            logprobs.append(_at(scores, targets_M[part]))
            entropies.append(_entropy(scores))
        entropy = torch.cat(entropies)
        ctx.save_for_backward(logits_MV, targets_M, *[entropy] * entropy_gradient)
        ctx.temperature = temperature
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        logits_MV, targets_M, *entropies = ctx.saved_tensors
        (gradient_M, of_entropy_M), temperature = gradients, ctx.temperature
        gradient_MV = torch.empty_like(logits_MV)
        for first in range(0, len(logits_MV), CHUNK):
            part = slice(first, first + CHUNK)
            weight = gradient_M[part, None] / temperature
            # That of a log-softmax at the target: 1 there, minus the probabilities everywhere.
            scores = torch.log_softmax(scaled(logits_MV[part], temperature), dim=-1)
            bonus = None
            if entropies:  # that of an entropy H: -p (log p + H)
                bonus = _finite(scores).add_(entropies[0][part, None])
                bonus.mul_(scores.exp()).mul_(-of_entropy_M[part, None] / temperature)
            step = scores.exp_().mul_(-weight)
            step.scatter_add_(-1, targets_M[part, None], weight)
            gradient_MV[part] = step if bonus is None else step.add_(bonus)
        return gradient_MV, None, None, None
