"""Group filters: select the groups of a batch whose rewards differ most.

StarPO-S keeps a fixed fraction of the groups, those with the largest spread. RAGEN-2 keeps the
fewest groups that hold a fraction p of the total spread, so the number kept follows the signal.
Masked verdicts (nan) are ignored.
    wanted = most_uncertain(group_spread(rewards_PG), share=0.25)
    wanted = top_p_spread(group_spread(rewards_PG), p=0.9)
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


def most_uncertain(spread_P: Tensor, *, share: float) -> Tensor:
    """Select the fraction `share` of groups with the largest spread. [P] of bool.

    A group without spread is never selected. Ties go to the earlier group.
    """
    wanted = torch.zeros_like(spread_P, dtype=torch.bool)
    order = spread_P.argsort(descending=True, stable=True)
    wanted[order[: math.ceil(share * len(spread_P))]] = True
    return wanted & (spread_P > EPSILON)


def top_p_spread(spread_P: Tensor, *, p: float) -> Tensor:
    """Select the fewest groups that hold a fraction `p` of the total spread. [P] of bool."""
    order = spread_P.argsort(descending=True, stable=True)
    held_before = spread_P[order].cumsum(0) - spread_P[order]
    wanted = torch.zeros_like(spread_P, dtype=torch.bool)
    wanted[order[held_before < p * spread_P.sum() - EPSILON]] = True
    return wanted & (spread_P > EPSILON)
