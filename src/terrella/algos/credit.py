"""Credit: which tokens a verdict is paid to.

An outcome belongs to the whole episode, a turn's verdict to that turn. Where a turn ends is said by `turn_ends`, never
inferred from a reward being non-zero: a turn that earned 0 is still a turn.
    turn_rewards([0.0, 1.0], turn_ends=[2, 5], length=5) -> [0, 0, 0, 0, 1]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from terrella.core.protocols import TokenEpisode


def turn_payments(episode: TokenEpisode, reward: str) -> list[float]:
    """What each turn is paid: the world's own rewards, or the verdict at the end. A turn that earned 0 is in it."""
    if reward == "return":
        return list(episode.turn_rewards)
    return [0.0] * (len(episode.turn_ends) - 1) + [episode.outcome.value or 0.0]


def turn_rewards(rewards: Sequence[float], turn_ends: Sequence[int], length: int) -> Tensor:
    """Each turn's reward on its last token."""
    paid = torch.zeros(length)
    for reward, end in zip(rewards, turn_ends, strict=True):
        paid[end - 1] += reward
    return paid


def to_go(rewards: Sequence[float]) -> list[float]:
    """What each turn and those after it earned, as a mean per turn, so that late turns weigh as much as early ones."""
    return [sum(rewards[place:]) / (len(rewards) - place) for place in range(len(rewards))]


def per_turn(values: Sequence[float], turn_ends: Sequence[int], length: int) -> list[float]:
    """One value per turn on each of its tokens."""
    found, start = [0.0] * length, 0
    for value, end in zip(values, turn_ends, strict=True):
        found[start:end] = [value] * (end - start)
        start = end
    return found


def spread(advantages_B: Tensor, mask_BT: Tensor) -> Tensor:
    """One advantage per episode on each of its model tokens."""
    return advantages_B[:, None] * mask_BT


def turn_level(rewards: Sequence[float], turn_ends: Sequence[int], mask: Tensor, *, gamma: float) -> Tensor:
    """Discounted return per turn, on each model token of that turn (the token order inside a turn earns nothing)."""
    returns, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + gamma * running
        returns.append(running)
    credit, start = torch.zeros(len(mask)), 0
    for value, end in zip(reversed(returns), turn_ends, strict=True):
        credit[start:end] = value
        start = end
    return credit * mask
