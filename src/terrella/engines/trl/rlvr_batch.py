"""Between the rollout's episodes and `algos.episode_batch`, whose rules both engines share.

Bookkeeping only; nothing here touches a model.
    facts, rewards = batch_facts(episodes, config), group_rewards(episodes, config)
    scored = scored_episodes(episodes, chosen_groups(facts, rewards, config), config)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from terrella.algos.advantages import zero_variance
from terrella.algos.credit import rewards_by_turn
from terrella.algos.diagnostics import WORLD_METRICS, diversity, reply_values, world_values
from terrella.algos.episode_batch import (
    EpisodeFacts,
    Score,
    TokenCounts,
    score_episodes,
    token_columns,
)
from terrella.algos.estimators import ESTIMATORS
from terrella.algos.filters import group_spread
from terrella.core.tokens import TokenEpisode, TrainExample
from terrella.core.types import MASKED
from terrella.engines.configs import RlvrConfig
from terrella.engines.trl.metrics import MetricAccumulator
from terrella.engines.trl.packs import Pack


class ScoredEpisode(NamedTuple):
    """An episode that counts in the loss, with its score."""

    episode: TokenEpisode
    score: Score


@dataclass(slots=True)
class Batch:
    """A batch of episodes, packed for training."""

    mini_batches: list[list[Pack]]
    """The packs of each optimiser step."""
    lengths: list[int]
    """Model tokens of each packed episode, in pack order."""
    counts: TokenCounts
    unshared_tokens: int
    """Tokens that would be read if no prompt were shared."""

    @property
    def packs(self) -> list[Pack]:
        """The packs of all mini-batches."""
        return [pack for packs in self.mini_batches for pack in packs]


def episode_facts(episode: TokenEpisode, reward: str) -> EpisodeFacts:
    """What the rules read of an episode."""
    return EpisodeFacts(
        model_mask=episode.model_mask,
        turn_ends=episode.turn_ends,
        rewards=rewards_by_turn(episode, reward),
        world_rewards=episode.turn_rewards,
        masked=episode.outcome.value is None,
    )


def batch_facts(episodes: Sequence[TokenEpisode], config: RlvrConfig) -> list[EpisodeFacts]:
    """What the rules read of each episode."""
    return [episode_facts(episode, config.reward) for episode in episodes]


def group_rewards(episodes: Sequence[TokenEpisode], config: RlvrConfig) -> Tensor:
    """[groups, group_size]; nan marks a masked verdict."""
    rewards = [facts.reward for facts in batch_facts(episodes, config)]
    return torch.tensor(rewards).view(-1, config.group_size)


def scored_episodes(
    episodes: Sequence[TokenEpisode], rewards: Tensor, config: RlvrConfig
) -> list[ScoredEpisode]:
    """The episodes that count in the loss. `rewards` are those of the chosen groups."""
    scores = score_episodes(batch_facts(episodes, config), rewards, config)
    pairs = zip(episodes, scores, strict=True)
    return [ScoredEpisode(episode, score) for episode, score in pairs if score is not None]


def scored_mini_batches(
    episodes: Sequence[TokenEpisode], rewards: Tensor, config: RlvrConfig
) -> list[list[ScoredEpisode]]:
    """The same for each mini-batch: equal numbers of groups, in their order."""
    groups = len(rewards) // config.mini_batches
    size = groups * rewards.shape[1]
    return [
        scored_episodes(
            episodes[part * size : (part + 1) * size],
            rewards[part * groups : (part + 1) * groups],
            config,
        )
        for part in range(config.mini_batches)
    ]


def train_examples(
    scored: Sequence[ScoredEpisode],
    counts: TokenCounts,
    config: RlvrConfig,
    *,
    longest: int,
    version: int = 0,
) -> list[TrainExample]:
    """The examples of all episodes: one of each, or one of each turn with a prompt of its own.

    Advantages and weights are those of the whole episode in either case; the examples of its turns
    share them out. `version` is that of the current weights; tokens of older ones are marked.
    """
    examples: list[TrainExample] = []
    for index, each in enumerate(scored):
        whole = train_example(each, counts, config, longest=longest, index=index, version=version)
        for prompt_ids, part in each.episode.sequences:
            example = TrainExample(
                prompt_ids=prompt_ids,
                completion_ids=whole.completion_ids[part],
                mask=whole.mask[part],
                columns={name: column[part] for name, column in whole.columns.items()},
            )
            examples.append(example)
    return examples


def train_example(
    scored: ScoredEpisode,
    counts: TokenCounts,
    config: RlvrConfig,
    *,
    longest: int,
    index: int = 0,
    version: int = 0,
) -> TrainExample:
    """All tokens of an episode: their columns, and the sampler's log-probabilities.

    `index` tells the episodes of a batch apart, for algorithms with one ratio per episode.
    """
    episode = scored.episode
    facts = episode_facts(episode, config.reward)
    shared = token_columns(facts, scored.score, counts, config, longest=longest)
    columns: dict[str, Sequence[float]] = {"sampled": episode.logprobs}
    columns |= {name: column.tolist() for name, column in shared.items()}
    if config.schedule == "async":
        columns["current"] = [float(each == version) for each in episode.versions]
    if ESTIMATORS[config.algorithm].ratio == "episode":
        columns["episode"] = [float(index)] * len(episode.completion_ids)
    # With a world loss every token is a target; its columns say which loss it carries.
    mask = (True,) * len(episode.model_mask) if config.world_loss else episode.model_mask
    return TrainExample(
        prompt_ids=episode.prompt_ids,
        completion_ids=episode.completion_ids,
        mask=mask,
        columns=columns,
    )


def trained_lengths(scored: Sequence[ScoredEpisode], examples: Sequence[TrainExample]) -> list[int]:
    """The number of targets of each episode; `examples` are those of all of them, in order."""
    sizes = iter([sum(example.mask) for example in examples])
    return [sum(next(sizes) for _ in each.episode.sequences) for each in scored]


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


def episode_metrics(
    episodes: Sequence[TokenEpisode],
    rewards: Tensor,
    accelerator: Any,
    worlds: Sequence[str] = (),
) -> dict[str, float]:
    """Metrics of a batch of episodes, over all processes.

    Masked verdicts are counted together and by cause (`masked/env_error`); of the causes, only
    those that occur are returned. Metrics of thoughts are returned where there are thoughts, and
    those of single worlds in a run with several (`worlds`).
    """
    replies = reply_values([reply for episode in episodes for reply in episode.replies])
    names = ("reward", "in_group_std", "zero_variance", "diversity", "masked", "tokens", "turns")
    causes = tuple(f"masked/{cause}" for cause in MASKED)
    # The same names on all processes, whichever worlds they played.
    optional: dict[str, list[float]] = {
        f"{name}/{world}": [] for world in worlds for name in WORLD_METRICS
    }
    optional |= replies | world_values(
        [episode.world for episode in episodes],
        rewards.flatten().tolist(),
        [episode.replies for episode in episodes],
    )
    totals = MetricAccumulator((*names, *optional, *causes))
    for name, values in optional.items():
        totals.add(name, torch.tensor(values))
    totals.add("reward", rewards[~rewards.isnan()])
    totals.add("zero_variance", zero_variance(rewards).float())
    totals.add("in_group_std", group_spread(rewards))
    written = [episode.completion_ids for episode in episodes]
    size = rewards.shape[1]
    groups = [written[start : start + size] for start in range(0, len(written), size)]
    totals.add("diversity", torch.tensor([diversity([group]) for group in groups]))
    totals.add("masked", rewards.isnan().float())
    for cause in MASKED:
        masked = [float(episode.outcome.status is cause) for episode in episodes]
        totals.add(f"masked/{cause}", torch.tensor(masked))
    totals.add("tokens", torch.tensor([float(sum(episode.model_mask)) for episode in episodes]))
    totals.add("turns", torch.tensor([float(len(episode.turn_ends)) for episode in episodes]))
    metrics = totals.gather(accelerator)
    wanted = {*names, *(name for name in optional if not math.isnan(metrics[name]))}
    return {
        name: value
        for name, value in metrics.items()
        if name in wanted or (name in causes and value)
    }
