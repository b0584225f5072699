"""From episodes to the training examples of one step: rewards, filters, advantages, weights.

Bookkeeping between the rollout's episodes and `algos/`; nothing here touches a model.
    rewards = group_rewards(episodes, config)
    scored = scored_episodes(episodes, rewards, "grpo")
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from terrella.algos.advantages import group_advantages, zero_variance
from terrella.algos.credit import per_turn, rewards_by_turn, to_go, turn_rewards
from terrella.algos.diagnostics import diversity
from terrella.algos.estimators import ESTIMATORS
from terrella.algos.filters import group_spread, most_uncertain, top_p_spread
from terrella.algos.losses import token_scales
from terrella.core.tokens import TokenEpisode, TrainExample
from terrella.engines.configs import RlvrConfig
from terrella.engines.trl.metrics import MetricAccumulator
from terrella.engines.trl.packs import Pack


class ScoredEpisode(NamedTuple):
    """An episode that counts in the loss, with its advantage (0 where a critic estimates it)."""

    episode: TokenEpisode
    advantage: float
    turns: tuple[float, ...] = ()
    """The advantage of each turn, where credit is given by turn."""

    @property
    def has_gradient(self) -> bool:
        """Whether any advantage differs from zero. An average member of a group has none."""
        return any(self.turns) or self.advantage != 0.0


class TokenCounts(NamedTuple):
    """Episodes and tokens that count in the loss of a batch, over all processes."""

    episodes: float
    tokens: float
    """Tokens that the model wrote."""
    world_tokens: float = 0.0


@dataclass(slots=True)
class Batch:
    """The episodes of one step, packed for training."""

    packs: list[Pack]
    lengths: list[int]
    """Model tokens of each packed episode, in pack order."""
    counts: TokenCounts
    unshared_tokens: int
    """Tokens that would be read if no prompt were shared."""


def group_rewards(episodes: Sequence[TokenEpisode], config: RlvrConfig) -> Tensor:
    """[groups, group_size]; nan marks a masked verdict."""
    rewards = []
    for episode in episodes:
        is_masked = episode.outcome.value is None
        rewards.append(math.nan if is_masked else sum(rewards_by_turn(episode, config.reward)))
    return torch.tensor(rewards).view(-1, config.group_size)


def informative_groups(rewards: Tensor, algorithm: str) -> Tensor:
    """[P] of bool: groups whose rewards differ; with a critic, groups with any known verdict."""
    return ~rewards.isnan().all(1) if algorithm == "ppo" else ~zero_variance(rewards)


def chosen_groups(rewards: Tensor, config: RlvrConfig) -> Tensor:
    """The rewards, with nan for groups that the filters leave out of training."""
    wanted = torch.ones(len(rewards), dtype=torch.bool)
    if config.keep_share < 1:
        wanted &= most_uncertain(rewards, share=config.keep_share)
    if config.keep_top_p < 1:
        wanted &= top_p_spread(rewards, p=config.keep_top_p)
    return torch.where(wanted[:, None], rewards, torch.nan)


def scored_episodes(
    episodes: Sequence[TokenEpisode], rewards: Tensor, algorithm: str, credit: str = "episode"
) -> list[ScoredEpisode]:
    """Episodes with a known verdict in informative groups, with their advantages."""
    estimator = ESTIMATORS[algorithm]
    if algorithm == "ppo":
        advantages = torch.zeros_like(rewards)
    else:
        advantages = group_advantages(rewards, scale=estimator.scale, baseline=estimator.baseline)
    wanted = informative_groups(rewards, algorithm)[:, None] & ~rewards.isnan()
    by_turn: list[tuple[float, ...]] = [()] * len(episodes)
    if credit == "turn":
        by_turn = turn_advantages(episodes, rewards, algorithm)
    scored = [
        ScoredEpisode(episode, advantage, turns)
        for episode, advantage, turns in zip(
            episodes, advantages.flatten().tolist(), by_turn, strict=True
        )
    ]
    return list(itertools.compress(scored, wanted.flatten().tolist()))


def turn_advantages(
    episodes: Sequence[TokenEpisode], rewards: Tensor, algorithm: str
) -> list[tuple[float, ...]]:
    """Advantage of each turn over the same turn of the group, by its reward-to-go."""
    estimator = ESTIMATORS[algorithm]
    size = rewards.shape[1]
    longest = max(len(episode.turn_ends) for episode in episodes)
    returns = torch.full((len(episodes), longest), torch.nan)
    known = (~rewards.isnan()).flatten().tolist()
    for index, episode in enumerate(episodes):
        if known[index]:
            to_come = torch.tensor(to_go(episode.turn_rewards))
            returns[index, : len(episode.turn_rewards)] = to_come
    by_turn = returns.view(-1, size, longest).transpose(1, 2).reshape(-1, size)
    advantages = group_advantages(by_turn, scale=estimator.scale, baseline=estimator.baseline)
    by_episode = advantages.view(-1, longest, size).transpose(1, 2).reshape(-1, longest).tolist()
    return [
        tuple(turns[: len(episode.turn_ends)])
        for turns, episode in zip(by_episode, episodes, strict=True)
    ]


def train_example(
    scored: ScoredEpisode, counts: TokenCounts, config: RlvrConfig, *, longest: int
) -> TrainExample:
    """The example of one episode, with its columns per token.

    They are the sampler's log-probability, the weight in the loss, and the advantage (for PPO: the
    reward).
    """
    episode = scored.episode
    length = len(episode.completion_ids)
    weight = token_scales(
        ESTIMATORS[config.algorithm].normalise,
        written=sum(episode.model_mask),
        episodes=counts.episodes,
        tokens=counts.tokens,
        longest=longest,
    )
    columns: dict[str, Sequence[float]] = {"sampled": episode.logprobs, "weight": [weight] * length}
    if config.algorithm == "ppo":
        columns["reward"] = turn_rewards(
            rewards_by_turn(episode, config.reward), episode.turn_ends, length
        ).tolist()
    else:
        turns = per_turn(scored.turns, episode.turn_ends, length) if scored.turns else None
        columns["advantage"] = turns or [scored.advantage] * length
    mask = episode.model_mask
    if config.world_loss:
        # Every token is a target; its columns say which loss it carries and with what weight.
        columns["world"] = [0.0 if by_model else 1.0 / counts.world_tokens for by_model in mask]
        mask = (True,) * length
    return TrainExample(
        prompt_ids=episode.prompt_ids,
        completion_ids=episode.completion_ids,
        mask=mask,
        columns=columns,
    )


def batch_counts(scored: Sequence[ScoredEpisode]) -> TokenCounts:
    """The counts of this process."""
    masks = [each.episode.model_mask for each in scored]
    written = sum(sum(mask) for mask in masks)
    return TokenCounts(len(scored), written, sum(len(mask) for mask in masks) - written)


def unshared_tokens(examples: Sequence[TrainExample]) -> int:
    """Tokens that would be read if no prompt were shared."""
    return sum(len(each.prompt_ids) + len(each.completion_ids) - 1 for each in examples)


def efficiency(batch: Batch) -> dict[str, float]:
    """Shares of padding (empty packs), of tokens with loss, and of tokens that sharing saves."""
    read = sum(len(pack.ids_N) for pack in batch.packs)
    idle = sum(len(pack.ids_N) for pack in batch.packs if not len(pack.targets_M))
    if read == idle:
        return {}
    saved = 1 - (read - idle) / batch.unshared_tokens
    return {
        "padding": idle / read,
        "trained_share": sum(batch.lengths) / read,
        "prefix_saved": saved,
    }


def episode_metrics(episodes: Sequence[TokenEpisode], rewards: Tensor) -> MetricAccumulator:
    """Metrics of a batch of episodes, to be gathered over processes."""
    totals = MetricAccumulator(
        ("reward", "in_group_std", "zero_variance", "diversity", "masked", "tokens", "turns")
    )
    totals.add("reward", rewards[~rewards.isnan()])
    totals.add("zero_variance", zero_variance(rewards).float())
    totals.add("in_group_std", group_spread(rewards))
    replies = [episode.completion_ids for episode in episodes]
    size = rewards.shape[1]
    groups = [replies[start : start + size] for start in range(0, len(replies), size)]
    totals.add("diversity", torch.tensor([diversity([group]) for group in groups]))
    totals.add("masked", rewards.isnan().float())
    totals.add("tokens", torch.tensor([float(sum(episode.model_mask)) for episode in episodes]))
    totals.add("turns", torch.tensor([float(len(episode.turn_ends)) for episode in episodes]))
    return totals
