"""Group filters: select the groups of a batch whose rewards differ most.

StarPO-S keeps a fixed fraction of the groups, those with the largest spread. RAGEN-2 keeps the
fewest groups that hold a fraction p of the total spread, so the number kept follows the signal.
Masked verdicts (nan) are ignored.
    wanted = most_uncertain(rewards_PG, share=0.25)
    wanted = top_p_spread(rewards_PG, p=0.9)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from terrella.algos.advantages import EPSILON


def group_spread(rewards_PG: Tensor) -> Tensor:
    """Standard deviation of each group's unmasked rewards; 0 with fewer than two. [P]."""
    known = ~rewards_PG.isnan()
    count = known.sum(1)
    rewards = torch.where(known, rewards_PG, 0.0)
    mean = rewards.sum(1) / count.clamp(min=1)
    square = torch.where(known, (rewards - mean[:, None]) ** 2, 0.0).sum(1)
    return torch.where(count > 1, (square / (count - 1).clamp(min=1)).sqrt(), 0.0)


def most_uncertain(rewards_PG: Tensor, *, share: float) -> Tensor:
    """Select the fraction `share` of groups with the largest spread. [P] of bool.

    A group without spread is never selected. Ties go to the earlier group.
    """
    spread = group_spread(rewards_PG)
    wanted = torch.zeros_like(spread, dtype=torch.bool)
    wanted[spread.argsort(descending=True, stable=True)[: math.ceil(share * len(spread))]] = True
    return wanted & (spread > EPSILON)


def top_p_spread(rewards_PG: Tensor, *, p: float) -> Tensor:
    """Select the fewest groups that hold a fraction `p` of the total spread. [P] of bool."""
    spread = group_spread(rewards_PG)
    order = spread.argsort(descending=True, stable=True)
    held_before = spread[order].cumsum(0) - spread[order]
    wanted = torch.zeros_like(spread, dtype=torch.bool)
    wanted[order[held_before < p * spread.sum() - EPSILON]] = True
    return wanted & (spread > EPSILON)
