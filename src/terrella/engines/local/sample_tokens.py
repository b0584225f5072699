"""One token per row of logits, by inverse-CDF sampling.

A row's token depends on its own logits and its own uniform number, not on the batch.
    tokens, logprobs = sample_tokens(logits, requests, uniforms)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from terrella.core.errors import EngineError
from terrella.core.tokens import TokenRequest


def sample_tokens(
    logits: Tensor, requests: Sequence[TokenRequest], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Inverse-CDF sampling with one uniform number per row.

    A row's token therefore depends on nothing but its own logits. Log-probabilities are those of
    the tempered distribution *before* the allowed-token mask, as a trainer computes them.
    """
    temperature = torch.tensor([r.temperature or 1.0 for r in requests], device=logits.device)[
        :, None
    ]
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    scores = _allow(logprobs, requests)
    cumulative = scores.double().exp().cumsum(-1)
    mass = cumulative[:, -1:]
    if not mass.isfinite().all():
        raise EngineError(
            "sampler",
            "the model's probabilities are nan, so no token can be sampled",
            "training has diverged: lower learning_rate, and start from an earlier checkpoint",
        )
    target = torch.tensor(uniforms, dtype=torch.double, device=logits.device)[:, None] * mass
    drawn = (cumulative <= target).sum(-1).clamp(max=logits.shape[-1] - 1)
    greedy = torch.tensor([r.temperature == 0 for r in requests], device=logits.device)
    tokens = torch.where(greedy, scores.argmax(-1), drawn)
    return tokens.tolist(), logprobs.gather(-1, tokens[:, None])[:, 0].tolist()


def _allow(logprobs: Tensor, requests: Sequence[TokenRequest]) -> Tensor:
    if all(request.allowed_ids is None for request in requests):
        return logprobs
    # Few masks, many rows: the requests of a video model all allow the same thousand ids.
    by_mask: dict[tuple[int, ...], list[int]] = {}
    for row, request in enumerate(requests):
        if request.allowed_ids is not None:
            by_mask.setdefault(request.allowed_ids, []).append(row)
    scores = logprobs.clone()
    for allowed, rows in by_mask.items():
        bias = torch.full_like(logprobs[0], -torch.inf)
        bias[list(allowed)] = 0.0
        scores[rows] += bias
    return scores
