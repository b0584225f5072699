"""From a batch of verl's rows to what one step trains on: rewards, advantages, loss weights.

Pure functions: tensors and plain records in, tensors out. The maths is in `algos/`, as in the TRL
engine. B rows (episodes) of T completion tokens are padded; a row that only fills up a batch has an
empty mask.
    estimated = estimate(columns, groups, algorithm="grpo")
    batch = make_train_batch(columns, groups, estimated, settings, longest=16)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from terrella.algos.advantages import gae, group_advantages, whiten, zero_variance
from terrella.algos.credit import turn_rewards
from terrella.algos.estimators import ESTIMATORS
from terrella.algos.losses import importance_weights, k3, token_scales


@dataclass(frozen=True, kw_only=True)
class TokenColumns:
    """The columns of a batch, aligned by token."""

    mask_BT: Tensor
    """True where the model wrote the token."""
    sampled_BT: Tensor
    """Log-probabilities from the rollout servers."""
    old_BT: Tensor
    """Log-probabilities from the trainer, before the step."""
    rewards_BT: Tensor
    """The reward of each token; a masked episode's row holds a nan."""
    values_BT: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """The columns that one step trains on."""

    rewards_PG: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor
    weights_BT: Tensor
    """Weights in the loss: they sum to 1 over the batch, before importance weights.

    They are 0 in masked rows and in groups without variance.
    """


def token_rewards(records: Sequence[dict[str, Any]], mask_BT: Tensor) -> Tensor:
    """Each turn's reward on its last token; nan on the first token of a masked episode."""
    rewards = torch.zeros(mask_BT.shape)
    for row, record in enumerate(records):
        if record["masked"]:
            rewards[row, 0] = math.nan
        else:
            by_turn = record["turn_rewards"]
            rewards[row] = turn_rewards(by_turn, record["turn_ends"], mask_BT.shape[1])
    return rewards


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


def group_rewards(rewards_BT: Tensor, groups_PG: Tensor) -> Tensor:
    """[P, G]; nan for a masked verdict and for a missing member."""
    rewards_B = torch.cat(
        [rewards_BT.sum(1), torch.tensor([math.nan])]
    )  # index -1 is the missing one
    return rewards_B[groups_PG]


def estimate(
    columns: TokenColumns,
    groups_PG: Tensor,
    *,
    algorithm: str,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns per token."""
    known_B = ~columns.rewards_BT.sum(1).isnan()
    mask = columns.mask_BT & known_B[:, None]
    if algorithm == "ppo":
        assert columns.values_BT is not None, "PPO needs a critic's values"
        return gae(columns.rewards_BT.nan_to_num(), columns.values_BT, mask, gamma=gamma, lam=lam)
    estimator = ESTIMATORS[algorithm]
    rewards = group_rewards(columns.rewards_BT, groups_PG)
    advantages = group_advantages(rewards, scale=estimator.scale, baseline=estimator.baseline)
    by_row = torch.zeros(len(mask) + 1).index_put((groups_PG.flatten(),), advantages.flatten())[:-1]
    by_token = by_row[:, None] * mask
    return by_token, by_token


def make_train_batch(
    columns: TokenColumns,
    groups_PG: Tensor,
    estimated: tuple[Tensor, Tensor],
    settings: Any,
    *,
    longest: int,
) -> TrainBatch:
    """Estimated advantages and returns, with loss weights over the tokens that count.

    The weights add up to 1 before importance weights are applied.
    """
    advantages, returns = estimated
    rewards = group_rewards(columns.rewards_BT, groups_PG)
    informative = _informative_rows(rewards, groups_PG, settings.algorithm, len(columns.mask_BT))
    counted = columns.mask_BT & informative[:, None]
    weights = _loss_weights(counted, settings.algorithm, longest)
    if settings.algorithm == "ppo" and settings.whiten:
        values = advantages[counted]
        advantages = whiten(advantages, mean=float(values.mean()), square=float((values**2).mean()))
    if settings.importance_cap:
        weights = weights * importance_weights(
            columns.old_BT, columns.sampled_BT, cap=settings.importance_cap
        )
    return TrainBatch(
        rewards_PG=rewards,
        advantages_BT=advantages * counted,
        returns_BT=returns,
        weights_BT=weights,
    )


def _informative_rows(rewards_PG: Tensor, groups_PG: Tensor, algorithm: str, count: int) -> Tensor:
    """[B] of bool: known verdicts of groups with variance; with a critic, all known verdicts."""
    wanted = ~rewards_PG.isnan()
    if algorithm != "ppo":
        wanted = wanted & ~zero_variance(rewards_PG)[:, None]
    informative = torch.zeros(count + 1, dtype=torch.bool)
    informative[groups_PG[wanted]] = True
    return informative[:-1]


def _loss_weights(counted_BT: Tensor, algorithm: str, longest: int) -> Tensor:
    written = counted_BT.sum(1)
    episodes, tokens = float((written > 0).sum()), float(written.sum())
    normalise = ESTIMATORS[algorithm].normalise
    weights = [0.0] * len(written)
    for row, count in enumerate(written.tolist()):
        if count:
            weights[row] = token_scales(
                normalise, written=count, episodes=episodes, tokens=tokens, longest=longest
            )
    return torch.tensor(weights)[:, None] * counted_BT


def mismatch(columns: TokenColumns) -> dict[str, float]:
    """How far sampler and trainer disagree on the tokens that the model wrote."""
    mask = columns.mask_BT
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
    batch: TrainBatch, records: Sequence[dict[str, Any]], written: Sequence[int]
) -> dict[str, float]:
    """Metrics of the episodes, under the names that the TRL engine uses.

    `records` are those of real rows only.
    """
    rewards = batch.rewards_PG
    known = ~rewards.isnan()
    read = sum(record["prompt_read"] for record in records)
    return {
        "reward": float(rewards[known].mean()) if known.any() else math.nan,
        "zero_variance": float(zero_variance(rewards).float().mean()),
        "masked": sum(bool(record["masked"]) for record in records) / max(len(records), 1),
        "tokens": sum(written) / max(len(written), 1),
        "turns": sum(len(record["turn_ends"]) for record in records) / max(len(records), 1),
        "prefix_hits": sum(record["prompt_cached"] for record in records) / max(read, 1),
    }
