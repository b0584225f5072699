"""Auxiliary loss on observation tokens: the policy also learns to predict its observations.

The policy gradient covers only the tokens that the model wrote. This optional cross-entropy covers
the tokens that the world wrote, in the same forward pass and with its own weight. The idea is
ECHO's: the observations of a rollout are free supervision for a world model.
    loss = loss + weight * world_token_loss(logprobs_M, shares_M)
"""

from __future__ import annotations

from torch import Tensor


def world_token_loss(logprobs_M: Tensor, shares_M: Tensor) -> Tensor:
    """Cross-entropy on the world's tokens; `shares_M` sums to 1 over them and is 0 elsewhere."""
    return -(logprobs_M * shares_M).sum()
