"""Advantages: how much better an episode (or a token) was than expected.

Group estimators compare the episodes of one task with each other. A masked verdict (nan) is left
out of the group mean and gets advantage 0. `gae` needs a critic. Shapes: P groups, G episodes per
group, B episodes, T tokens.
    group_advantages(torch.tensor([[1.0, 0.0]]), scale="std") -> [[+1, -1]] (nearly)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

EPSILON = 1e-6


def group_advantages(
    rewards_PG: Tensor,
    *,
    scale: Literal["std", "none"] = "std",
    baseline: Literal["mean", "leave_one_out"] = "mean",
) -> Tensor:
    """Advantages within each group; nan marks a masked verdict.

    GRPO is (std, mean), Dr. GRPO is (none, mean), RLOO is (none, leave_one_out).
    """
    known = ~rewards_PG.isnan()
    rewards = torch.where(known, rewards_PG, 0.0)
    count = known.sum(1, keepdim=True)
    total = rewards.sum(1, keepdim=True)
    mean = total / count.clamp(min=1)
    others_mean = (total - rewards) / (count - 1).clamp(min=1)
    advantages = rewards - (others_mean if baseline == "leave_one_out" else mean)
    if scale == "std":
        variance = torch.where(known, (rewards - mean) ** 2, 0.0).sum(1, keepdim=True) / (
            count - 1
        ).clamp(min=1)
        advantages = advantages / (variance.sqrt() + EPSILON)
    # A lone verdict has nothing to be compared with: its advantage is 0.
    return torch.where(known & (count > 1), advantages, 0.0)


def listed_group_advantages(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """`group_advantages` of plain numbers, for callers without tensors."""
    advantages: list[list[float]] = group_advantages(torch.tensor(rewards)).tolist()
    return advantages


def zero_variance(rewards_PG: Tensor) -> Tensor:
    """Groups without a gradient: rewards all equal, or fewer than two unmasked. [P] of bool."""
    known = ~rewards_PG.isnan()
    low = torch.where(known, rewards_PG, torch.inf).amin(1)
    high = torch.where(known, rewards_PG, -torch.inf).amax(1)
    return (known.sum(1) < 2) | (high - low <= EPSILON)


def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over the tokens that the model wrote.

    Observation tokens (mask 0) are skipped: they take no time step, so nothing is discounted
    across them. Returns (advantages, returns). With gamma = lam = 1 and zero values the advantage
    is the undiscounted reward-to-go (REINFORCE).
    """
    advantages = torch.zeros_like(values_BT)
    next_value = torch.zeros_like(values_BT[:, 0])
    running = torch.zeros_like(next_value)
    for t in range(values_BT.shape[1] - 1, -1, -1):
        is_model_token = mask_BT[:, t].bool()
        delta = rewards_BT[:, t] + gamma * next_value - values_BT[:, t]
        running = torch.where(is_model_token, delta + gamma * lam * running, running)
        next_value = torch.where(is_model_token, values_BT[:, t], next_value)
        advantages[:, t] = torch.where(is_model_token, running, 0.0)
    return advantages, torch.where(mask_BT.bool(), advantages + values_BT, 0.0)


def whiten(values: Tensor, *, mean: float, square: float) -> Tensor:
    """Scale to zero mean and unit variance.

    `mean` and `square` are the means of the values and of their squares over the whole batch, all
    processes included.
    """
    deviation = math.sqrt(max(square - mean**2, 0.0))
    return (values - mean) / (deviation + EPSILON)
