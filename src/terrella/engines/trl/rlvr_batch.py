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
from terrella.algos.credit import per_turn, to_go, turn_payments, turn_rewards
from terrella.algos.diagnostics import diversity
from terrella.algos.estimators import ESTIMATORS
from terrella.algos.filters import group_spread, most_uncertain, top_p_spread
from terrella.algos.losses import token_scales
from terrella.core.protocols import TokenEpisode
from terrella.engines.trl.figures import Totals
from terrella.engines.trl.packs import Pack, TrainingRow
from terrella.engines.trl.rlvr_settings import RlvrSettings


class Kept(NamedTuple):
    """An episode that counts in the loss, with its advantage (0 where a critic will say it)."""

    episode: TokenEpisode
    advantage: float
    turns: tuple[float, ...] = ()
    """Where turns are credited: the advantage of each."""

    @property
    def moves(self) -> bool:
        """An average member of a group pulls nowhere."""
        return any(self.turns) or self.advantage != 0.0


class Counts(NamedTuple):
    """How much counts in the loss of a batch, over all processes."""

    episodes: float
    tokens: float
    """Of the model."""
    world_tokens: float = 0.0


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


def chosen_groups(rewards: Tensor, config: RlvrSettings.Config) -> Tensor:
    """The same verdicts, those of groups that the filters leave out as nan: nothing is trained on them."""
    wanted = torch.ones(len(rewards), dtype=torch.bool)
    if config.keep_share < 1:
        wanted &= most_uncertain(rewards, share=config.keep_share)
    if config.keep_top_p < 1:
        wanted &= top_p_spread(rewards, p=config.keep_top_p)
    return torch.where(wanted[:, None], rewards, torch.nan)


def kept_episodes(
    episodes: Sequence[TokenEpisode], rewards: Tensor, algorithm: str, credit: str = "episode"
) -> list[Kept]:
    """Known verdicts of the groups that teach something."""
    estimator = ESTIMATORS[algorithm]
    if algorithm == "ppo":
        advantages = torch.zeros_like(rewards)
    else:
        advantages = group_advantages(rewards, scale=estimator.scale, baseline=estimator.baseline)
    wanted = teaching(rewards, algorithm)[:, None] & ~rewards.isnan()
    turns = turn_advantages(episodes, rewards, algorithm) if credit == "turn" else [()] * len(episodes)
    rows = zip(episodes, advantages.flatten().tolist(), turns, wanted.flatten().tolist(), strict=True)
    return [Kept(episode, advantage, each) for episode, advantage, each, counts in rows if counts]


def turn_advantages(episodes: Sequence[TokenEpisode], rewards: Tensor, algorithm: str) -> list[tuple[float, ...]]:
    """Each turn against the same turn of its siblings, by what it and later turns earned."""
    estimator, size, longest = ESTIMATORS[algorithm], rewards.shape[1], max(len(e.turn_ends) for e in episodes)
    returns = torch.full((len(episodes), longest), torch.nan)
    for row, episode, known in zip(returns, episodes, (~rewards.isnan()).flatten().tolist(), strict=True):
        if known:
            row[: len(episode.turn_rewards)] = torch.tensor(to_go(episode.turn_rewards))
    by_turn = returns.view(-1, size, longest).transpose(1, 2).reshape(-1, size)
    found = group_advantages(by_turn, scale=estimator.scale, baseline=estimator.baseline)
    per_episode = found.view(-1, longest, size).transpose(1, 2).reshape(len(episodes), longest)
    return [tuple(row[: len(e.turn_ends)]) for row, e in zip(per_episode.tolist(), episodes, strict=True)]


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
        turns = per_turn(kept.turns, episode.turn_ends, length) if kept.turns else None
        columns["advantage"] = turns or [kept.advantage] * length
    mask = episode.model_mask
    if config.world_loss:  # every token is a target; which loss it carries, and how much of it, is in its columns
        columns["world"] = [0.0 if mine else 1.0 / counts.world_tokens for mine in mask]
        mask = (True,) * length
    return TrainingRow(prompt_ids=episode.prompt_ids, completion_ids=episode.completion_ids, mask=mask, columns=columns)


def batch_counts(kept: Sequence[Kept]) -> Counts:
    """Of this process."""
    written = sum(sum(k.episode.model_mask) for k in kept)
    return Counts(len(kept), written, sum(len(k.episode.model_mask) for k in kept) - written)


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
    totals = Totals(("reward", "in_group_std", "zero_variance", "diversity", "masked", "tokens", "turns"))
    totals.add("reward", rewards[~rewards.isnan()])
    totals.add("zero_variance", zero_variance(rewards).float())
    totals.add("in_group_std", group_spread(rewards))
    replies = [[e.completion_ids for e in episodes[at : at + rewards.shape[1]]] for at in
               range(0, len(episodes), rewards.shape[1])]  # fmt: skip
    totals.add("diversity", torch.tensor([diversity([group]) for group in replies]))
    totals.add("masked", rewards.isnan().float())
    totals.add("tokens", torch.tensor([float(sum(episode.model_mask)) for episode in episodes]))
    totals.add("turns", torch.tensor([float(len(episode.turn_ends)) for episode in episodes]))
    return totals
