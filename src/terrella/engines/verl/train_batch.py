"""Between verl's rows and `algos.episode_batch`, whose rules both engines share.

Pure functions: tensors and plain records in, tensors out. B rows (episodes) of T completion tokens
are padded; a row that only fills up a batch has an empty mask and is in no group.
    groups_PG = group_indices(uids, real)
    facts = episode_facts(records, mask_BT)
    batch = make_train_batch(columns, facts, groups_PG, settings, longest=longest)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from terrella.algos.advantages import gae, whiten
from terrella.algos.diagnostics import mask_metrics, reply_metrics, spread_metrics, world_values
from terrella.algos.episode_batch import (
    MISSING,
    EpisodeFacts,
    Score,
    chosen_groups,
    score_episodes,
    token_columns,
    token_counts,
)
from terrella.algos.losses import importance_weights, k3
from terrella.core.tokens import ReplyFacts
from terrella.engines.configs import RlvrConfig


@dataclass(frozen=True, kw_only=True)
class TokenColumns:
    """The columns of a batch, aligned by token."""

    mask_BT: Tensor
    """True where the model wrote the token."""
    sampled_BT: Tensor
    """Log-probabilities from the rollout servers."""
    old_BT: Tensor
    """Log-probabilities from the trainer, before the step."""
    values_BT: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """The columns that one step trains on."""

    rewards_PG: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor
    weights_BT: Tensor
    """Weights in the loss: they sum to 1 and are 0 in masked rows and groups that do not count."""
    importance_BT: Tensor
    """Importance weights of the policy loss, 1 where they are off."""
    world_BT: Tensor
    """Weights of the auxiliary loss on the world's tokens: they sum to 1, or are all 0."""
    old_BT: Tensor
    """Log-probabilities of the policy that the clipped ratio is to."""

    def has_signal(self, settings: RlvrConfig) -> bool:
        """Whether any token counts in a loss; without one, a step must change no weight."""
        on_world = bool(settings.world_loss) and bool(self.world_BT.any())
        return bool(self.weights_BT.any()) or on_world

    def columns(self) -> dict[str, Tensor]:
        """The columns under the names that verl and `losses` read."""
        return {
            "old_log_probs": self.old_BT,
            "advantages": self.advantages_BT,
            "returns": self.returns_BT,
            "policy_weights": self.weights_BT * self.importance_BT,
            "value_weights": self.weights_BT,
            "world_weights": self.world_BT,
        }


def episode_facts(records: Sequence[dict[str, Any]], mask_BT: Tensor) -> list[EpisodeFacts]:
    """What the rules read of each row. `records` are the agent loops' extra fields."""
    return [
        EpisodeFacts(
            model_mask=mask[: record["length"]],
            turn_ends=record["turn_ends"],
            rewards=record["turn_rewards"],
            world_rewards=record["world_rewards"],
            masked=bool(record["masked"]),
        )
        for record, mask in zip(records, mask_BT.tolist(), strict=True)
    ]


def group_indices(uids: Sequence[str], real: Sequence[bool]) -> Tensor:
    """[P, G]: the row indices of each group, -1 where a member is missing.

    Rows that are not `real` only fill up the batch and are in no group.
    """
    groups: dict[str, list[int]] = {}
    for row, (uid, is_real) in enumerate(zip(uids, real, strict=True)):
        if is_real:
            groups.setdefault(uid, []).append(row)
    size = max(map(len, groups.values()), default=1)
    padded = [rows + [-1] * (size - len(rows)) for rows in groups.values()]
    return torch.tensor(padded).view(-1, size)


def group_rewards(episodes: Sequence[EpisodeFacts], groups_PG: Tensor) -> Tensor:
    """[P, G]; nan for a masked verdict and for a missing member."""
    rewards = [episode.reward for episode in group_members(episodes, groups_PG)]
    return torch.tensor(rewards).view(groups_PG.shape)


def group_members(episodes: Sequence[EpisodeFacts], groups_PG: Tensor) -> list[EpisodeFacts]:
    """The members of all groups, group by group."""
    members = [*episodes, MISSING]  # index -1 is the missing one
    return [members[row] for row in groups_PG.flatten().tolist()]


def make_train_batch(
    columns: TokenColumns,
    episodes: Sequence[EpisodeFacts],
    groups_PG: Tensor,
    settings: RlvrConfig,
    *,
    longest: int,
) -> TrainBatch:
    """Advantages, returns and loss weights of a batch."""
    rewards = group_rewards(episodes, groups_PG)
    scores = _scores_by_row(episodes, groups_PG, rewards, settings)
    padded = _padded_columns(columns.mask_BT, episodes, scores, settings, longest=longest)
    counted = columns.mask_BT & (padded["weight"] > 0)
    weights = padded["weight"] * counted
    advantages, returns = _estimated(columns, padded, counted, settings)
    importance = torch.ones(weights.shape)
    if cap := settings.importance_cap:
        importance = importance_weights(columns.old_BT, columns.sampled_BT, cap=cap)
    return TrainBatch(
        rewards_PG=rewards,
        advantages_BT=advantages * counted,
        returns_BT=returns,
        weights_BT=weights,
        importance_BT=importance,
        world_BT=padded["world"],
        # With async, the policy that wrote the tokens may be older than the one before the step.
        old_BT=columns.sampled_BT if settings.schedule == "async" else columns.old_BT,
    )


def _scores_by_row(
    episodes: Sequence[EpisodeFacts], groups_PG: Tensor, rewards_PG: Tensor, settings: RlvrConfig
) -> dict[int, Score]:
    """The scores of the rows that count in the loss."""
    members = group_members(episodes, groups_PG)
    scores = score_episodes(members, chosen_groups(members, rewards_PG, settings), settings)
    rows = groups_PG.flatten().tolist()
    return {row: score for row, score in zip(rows, scores, strict=True) if score is not None}


def _padded_columns(
    mask_BT: Tensor,
    episodes: Sequence[EpisodeFacts],
    scores: dict[int, Score],
    settings: RlvrConfig,
    *,
    longest: int,
) -> dict[str, Tensor]:
    """The columns of `algos.episode_batch.token_columns`, with zeros in rows that do not count."""
    counts = token_counts(episodes[row].model_mask for row in scores)
    padded = {
        name: torch.zeros(mask_BT.shape) for name in ("weight", "advantage", "reward", "world")
    }
    for row, score in scores.items():
        episode = episodes[row]
        columns = token_columns(episode, score, counts, settings, longest=longest)
        for name, column in columns.items():
            padded[name][row, : len(column)] = column
    return padded


def _estimated(
    columns: TokenColumns, padded: dict[str, Tensor], counted_BT: Tensor, settings: RlvrConfig
) -> tuple[Tensor, Tensor]:
    """Advantages and returns: those of the groups, or with a critic those of its values."""
    if settings.algorithm != "ppo":
        return padded["advantage"], padded["advantage"]
    assert columns.values_BT is not None, "PPO needs a critic's values"
    advantages, returns = gae(
        padded["reward"], columns.values_BT, counted_BT, gamma=settings.gamma, lam=settings.lam
    )
    values = advantages[counted_BT]
    if settings.whiten and len(values):
        advantages = whiten(advantages, mean=float(values.mean()), square=float((values**2).mean()))
    return advantages, returns


def row_ages(records: Sequence[dict[str, Any]], real: Sequence[bool], *, version: int) -> list[int]:
    """How many versions older than the trainer's weights the oldest token of each row is.

    Rows that only fill up the batch count as current.
    """
    return [
        max(0, version - int(record["min_global_steps"])) if is_real else 0
        for record, is_real in zip(records, real, strict=True)
    ]


def mismatch(columns: TokenColumns, current: Sequence[bool] | None = None) -> dict[str, float]:
    """How far sampler and trainer disagree on the tokens that the model wrote.

    `current` are the rows that the trainer's weights wrote; None is all of them.
    """
    mask = columns.mask_BT
    if current is not None:
        mask = mask & torch.tensor(current, dtype=torch.bool, device=mask.device)[:, None]
    if not mask.any():
        return {}
    gap = (columns.old_BT - columns.sampled_BT)[mask].abs()
    divergence = k3(columns.sampled_BT[mask], columns.old_BT[mask])
    return {
        "mismatch/mean": float(gap.mean()),
        "mismatch/max": float(gap.max()),
        "mismatch/kl": float(divergence.mean()),
    }


def batch_metrics(
    rewards_PG: Tensor, records: Sequence[dict[str, Any]], episodes: Sequence[EpisodeFacts]
) -> dict[str, float]:
    """Metrics of the episodes, under the names that the TRL engine uses. Real rows only."""
    known = ~rewards_PG.isnan()
    read = sum(record["prompt_read"] for record in records)
    written = [sum(episode.model_mask) for episode in episodes]
    count = max(len(records), 1)
    replies = [[ReplyFacts(*reply) for reply in record["replies"]] for record in records]
    by_world = world_values(
        [record["world"] for record in records], [each.reward for each in episodes], replies
    )
    return {
        "reward": float(rewards_PG[known].mean()) if known.any() else math.nan,
        **spread_metrics(rewards_PG),
        **mask_metrics([record["status"] for record in records]),
        **reply_metrics([reply for each in replies for reply in each]),
        **{name: sum(values) / len(values) for name, values in by_world.items() if values},
        "tokens": sum(written) / count,
        "turns": sum(len(record["turn_ends"]) for record in records) / count,
        "prefix_hits": sum(record["prompt_cached"] for record in records) / max(read, 1),
    }
