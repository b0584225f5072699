"""Credit assignment: which tokens receive a reward.

An outcome belongs to the whole episode, a turn's reward to that turn. `turn_ends` says where each
turn ends; it is never inferred from a reward being non-zero, because a turn may earn 0.
    turn_rewards([0.0, 1.0], turn_ends=[2, 5], length=5) -> [0, 0, 0, 0, 1]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from terrella.core.tokens import TokenEpisode


def rewards_by_turn(episode: TokenEpisode, reward: str) -> list[float]:
    """Reward of each turn, zeros included.

    With reward="return" these are the world's own rewards; otherwise the last turn gets the
    verdict of the episode and all others get 0.
    """
    if reward == "return":
        return list(episode.turn_rewards)
    return [0.0] * (len(episode.turn_ends) - 1) + [episode.outcome.value or 0.0]


def turn_rewards(rewards: Sequence[float], turn_ends: Sequence[int], length: int) -> Tensor:
    """Put each turn's reward on its last token."""
    token_rewards = torch.zeros(length)
    for reward, end in zip(rewards, turn_ends, strict=True):
        token_rewards[end - 1] += reward
    return token_rewards


def to_go(rewards: Sequence[float]) -> list[float]:
    """Mean reward of each turn and all later ones.

    A mean rather than a sum, so that early turns do not weigh more than late ones.
    """
    return [sum(rewards[turn:]) / (len(rewards) - turn) for turn in range(len(rewards))]


def per_turn(values: Sequence[float], turn_ends: Sequence[int], length: int) -> list[float]:
    """Repeat each turn's value on all of its tokens."""
    token_values, start = [0.0] * length, 0
    for value, end in zip(values, turn_ends, strict=True):
        token_values[start:end] = [value] * (end - start)
        start = end
    return token_values
