"""The auxiliary loss on what the world wrote: an agent that also predicts its observations, in the same forward pass.

Policy gradients never touch the world's tokens; this plain cross-entropy does, when asked for, with a weight of its own
(ECHO's idea: the observations of a rollout are free supervision for a world model).
    loss = loss + weight * world_token_loss(logprobs_M, shares_M)
"""

from __future__ import annotations

from torch import Tensor


def world_token_loss(logprobs_M: Tensor, shares_M: Tensor) -> Tensor:
    """Cross-entropy over the targets that the world wrote; `shares` add up to 1 over them, and are 0 elsewhere."""
    return -(logprobs_M * shares_M).sum()
