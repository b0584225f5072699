"""From episodes to what one step trains on: verdicts, who teaches something, rows with their weights and columns.

Pure bookkeeping between the driver's records and `algos/`; nothing here touches a model.
    rewards = group_rewards(episodes, config); kept = kept_episodes(episodes, rewards, "grpo")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from terrella.algos.advantages import group_advantages, zero_variance
from terrella.algos.credit import turn_payments, turn_rewards
from terrella.algos.estimators import ESTIMATORS
from terrella.algos.losses import token_scales
from terrella.core.protocols import TokenEpisode
from terrella.engines.trl.figures import Totals
from terrella.engines.trl.packs import Pack, TrainingRow
from terrella.engines.trl.rlvr_settings import RlvrSettings


class Kept(NamedTuple):
    """An episode that counts in the loss, with its advantage (0 where a critic will say it)."""

    episode: TokenEpisode
    advantage: float


class Counts(NamedTuple):
    """How much counts in the loss of a batch, over all processes."""

    episodes: float
    tokens: float


@dataclass(slots=True)
class Batch:
    """Episodes of one step, ready to train on."""

    packs: list[Pack]
    lengths: list[int]
    """Model tokens of each packed episode, in pack order."""
    counts: Counts
    plain_tokens: int
    """Tokens that would be read if every episode brought its own prompt."""


def group_rewards(episodes: Sequence[TokenEpisode], config: RlvrSettings.Config) -> Tensor:
    """[groups, group_size]; nan marks a masked verdict."""
    values = [math.nan if e.outcome.value is None else sum(turn_payments(e, config.reward)) for e in episodes]
    return torch.tensor(values).view(-1, config.group_size)


def teaching(rewards: Tensor, algorithm: str) -> Tensor:
    """Which groups teach something: [P] of bool. With a critic every known verdict does."""
    return ~rewards.isnan().all(1) if algorithm == "ppo" else ~zero_variance(rewards)


def kept_episodes(episodes: Sequence[TokenEpisode], rewards: Tensor, algorithm: str) -> list[Kept]:
    """Known verdicts of the groups that teach something."""
    estimator = ESTIMATORS[algorithm]
    if algorithm == "ppo":
        advantages = torch.zeros_like(rewards)
    else:
        advantages = group_advantages(rewards, scale=estimator.scale, baseline=estimator.baseline)
    wanted = teaching(rewards, algorithm)[:, None] & ~rewards.isnan()
    rows = zip(episodes, advantages.flatten().tolist(), wanted.flatten().tolist(), strict=True)
    return [Kept(episode, advantage) for episode, advantage, counts in rows if counts]


def training_row(kept: Kept, counts: Counts, config: RlvrSettings.Config, *, longest: int) -> TrainingRow:
    """One episode with its columns: sampled log-probability, share of the loss, advantage or payment per token."""
    episode, length = kept.episode, len(kept.episode.completion_ids)
    weight = token_scales(
        ESTIMATORS[config.algorithm].normalise, written=sum(episode.model_mask), episodes=counts.episodes,
        tokens=counts.tokens, longest=longest,
    )  # fmt: skip
    columns: dict[str, Sequence[float]] = {"sampled": episode.logprobs, "weight": [weight] * length}
    if config.algorithm == "ppo":
        columns["paid"] = turn_rewards(turn_payments(episode, config.reward), episode.turn_ends, length).tolist()
    else:
        columns["advantage"] = [kept.advantage] * length
    return TrainingRow(
        prompt_ids=episode.prompt_ids, completion_ids=episode.completion_ids, mask=episode.model_mask, columns=columns
    )


def plain_tokens(rows: Sequence[TrainingRow]) -> int:
    """Tokens read without sharing prompts."""
    return sum(len(row.prompt_ids) + len(row.completion_ids) - 1 for row in rows)


def efficiency(batch: Batch) -> dict[str, float]:
    """Padding (places that keep company), tokens that carry loss, and tokens not read thanks to shared prompts."""
    read = sum(len(pack.ids_N) for pack in batch.packs)
    idle = sum(len(pack.ids_N) for pack in batch.packs if not len(pack.targets_M))
    if read == idle:
        return {}
    saved = 1 - (read - idle) / batch.plain_tokens
    return {"padding": idle / read, "trained_share": sum(batch.lengths) / read, "prefix_saved": saved}


def episode_figures(episodes: Sequence[TokenEpisode], rewards: Tensor) -> Totals:
    """What a batch of episodes was like, to be gathered over processes."""
    totals = Totals(("reward", "zero_variance", "masked", "tokens", "turns"))
    totals.add("reward", rewards[~rewards.isnan()])
    totals.add("zero_variance", zero_variance(rewards).float())
    totals.add("masked", rewards.isnan().float())
    totals.add("tokens", torch.tensor([float(sum(episode.model_mask)) for episode in episodes]))
    totals.add("turns", torch.tensor([float(len(episode.turn_ends)) for episode in episodes]))
    return totals
