"""Log-probabilities and entropies of targets, in memory that a large vocabulary does not multiply.

Logits are [targets, vocabulary]: with 152,000 words, 1,000 targets are 0.6 GB in fp32. Plain
autograd holds several such tensors at once. Above `CHUNK` targets, chunk after chunk is computed,
nothing is kept but the logits, and the backward pass computes a chunk again.
    logprobs_M, entropy_M = logprobs_of(logits_MV, targets_M)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 1024
"""Targets that are computed at a time."""


def logprobs_of(
    logits_MV: Tensor, targets_M: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability [M] of each target, and the entropy [M] of its distribution."""
    if len(logits_MV) > CHUNK:
        logprobs, entropy = _Chunked.apply(logits_MV, targets_M, temperature)  # type: ignore[no-untyped-call]
        return logprobs, entropy
    scores = torch.log_softmax(scaled(logits_MV, temperature), dim=-1)
    with torch.no_grad():
        entropy = _entropy(scores)
    return _at(scores, targets_M), entropy


def scaled(logits: Tensor, temperature: float) -> Tensor:
    """Logits in fp32 as they are sampled from; no copy where nothing changes."""
    logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature


def _chunks(count: int) -> list[slice]:
    return [slice(first, first + CHUNK) for first in range(0, count, CHUNK)]


def _entropy(scores: Tensor) -> Tensor:
    # Finite, because a token that is never written adds 0, and 0 * -inf is nan.
    finite = scores.clamp(min=torch.finfo(scores.dtype).min)
    return -(scores.exp() * finite).sum(-1)


def _at(scores: Tensor, targets: Tensor) -> Tensor:
    return scores.gather(-1, targets[:, None])[:, 0]


class _Chunked(torch.autograd.Function):
    """`logprobs_of` chunk by chunk. The entropy has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, logits_MV: Tensor, targets_M: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = [], []
        for part in _chunks(len(logits_MV)):
            scores = torch.log_softmax(scaled(logits_MV[part], temperature), dim=-1)
            logprobs.append(_at(scores, targets_M[part]))
            entropies.append(_entropy(scores))
        entropy = torch.cat(entropies)
        ctx.save_for_backward(logits_MV, targets_M)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits_MV, targets_M = ctx.saved_tensors
        gradient_M, temperature = gradients[0], ctx.temperature
        gradient_MV = torch.empty_like(logits_MV)
        for part in _chunks(len(logits_MV)):
            weight = gradient_M[part, None] / temperature
            # That of a log-softmax at the target: 1 there, minus the probabilities everywhere.
            scores = torch.log_softmax(scaled(logits_MV[part], temperature), dim=-1)
            step = scores.exp_().mul_(-weight)
            step.scatter_add_(-1, targets_M[part, None], weight)
            gradient_MV[part] = step
        return gradient_MV, None, None
