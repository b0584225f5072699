"""From a batch of verl's rows to what one step trains on: rewards, advantages, the share of each token in the loss.

Pure: tensors and plain records in, tensors out; the maths is `algos/`, as in the other engine. Rows are padded; a row
that only fills up a batch has an empty mask. B rows, T completion tokens.
    lessons = learn(rows, groups, estimate(rows, groups, algorithm="grpo"), settings, longest=16); lessons.weights_BT
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
class Rows:
    """Aligned columns of a batch."""

    mask_BT: Tensor
    """True where the model wrote the token."""
    sampled_BT: Tensor
    """Log-probabilities of the servers."""
    old_BT: Tensor
    """Of the trainer, before the step."""
    paid_BT: Tensor
    """What was paid on which token; a masked row holds a nan."""
    values_BT: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """What the step trains on."""

    rewards_PG: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor
    weights_BT: Tensor
    """Sums to 1 over the batch times the importance weight; 0 for rows that teach nothing."""


def paid_tokens(records: Sequence[dict[str, Any]], mask_BT: Tensor) -> Tensor:
    """Each turn's payment on its last token; nan on the first token of a masked episode."""
    paid = torch.zeros(mask_BT.shape)
    for row, record in enumerate(records):
        if record["masked"]:
            paid[row, 0] = math.nan
        else:
            paid[row] = turn_rewards(record["paid"], record["turn_ends"], mask_BT.shape[1])
    return paid


def groups_of(uids: Sequence[str], real: Sequence[bool]) -> Tensor:
    """[P, G] row numbers of each group, -1 where a member is missing; rows that only fill up are in no group."""
    found: dict[str, list[int]] = {}
    for row, (uid, counts) in enumerate(zip(uids, real, strict=True)):
        if counts:
            found.setdefault(uid, []).append(row)
    size = max(map(len, found.values()), default=1)
    return torch.tensor([rows + [-1] * (size - len(rows)) for rows in found.values()]).view(-1, size)


def group_rewards(paid_BT: Tensor, groups_PG: Tensor) -> Tensor:
    """[P, G]; nan for a masked verdict and for a member that is missing."""
    rewards_B = torch.cat([paid_BT.sum(1), torch.tensor([math.nan])])  # index -1 is the missing one
    return rewards_B[groups_PG]


def estimate(
    rows: Rows, groups_PG: Tensor, *, algorithm: str, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and returns per token, before any share of the loss."""
    known_B = ~rows.paid_BT.sum(1).isnan()
    mask = rows.mask_BT & known_B[:, None]
    if algorithm == "ppo":
        assert rows.values_BT is not None, "PPO needs a critic's values"
        return gae(rows.paid_BT.nan_to_num(), rows.values_BT, mask, gamma=gamma, lam=lam)
    estimator = ESTIMATORS[algorithm]
    rewards = group_rewards(rows.paid_BT, groups_PG)
    advantages = group_advantages(rewards, scale=estimator.scale, baseline=estimator.baseline)
    by_row = torch.zeros(len(mask) + 1).index_put((groups_PG.flatten(),), advantages.flatten())[:-1]
    spread = by_row[:, None] * mask
    return spread, spread


def learn(rows: Rows, groups_PG: Tensor, estimated: tuple[Tensor, Tensor], settings: Any, *, longest: int) -> Lessons:
    """Who teaches what: estimated advantages and returns, and weights that add up to 1 over the tokens that count."""
    rewards, (advantages, returns) = group_rewards(rows.paid_BT, groups_PG), estimated
    counted = rows.mask_BT & _teaching_rows(rewards, groups_PG, settings.algorithm, len(rows.mask_BT))[:, None]
    weights = _shares(counted, settings.algorithm, longest)
    if settings.algorithm == "ppo" and settings.whiten:
        found = advantages[counted]
        advantages = whiten(advantages, mean=float(found.mean()), square=float((found**2).mean()))
    if settings.importance_cap:
        weights = weights * importance_weights(rows.old_BT, rows.sampled_BT, cap=settings.importance_cap)
    return Lessons(rewards_PG=rewards, advantages_BT=advantages * counted, returns_BT=returns, weights_BT=weights)


def _teaching_rows(rewards_PG: Tensor, groups_PG: Tensor, algorithm: str, count: int) -> Tensor:
    """Known verdicts of the groups that teach something: [B] of bool. With a critic every known verdict does."""
    known = ~rewards_PG.isnan()
    teaching = known if algorithm == "ppo" else known & ~zero_variance(rewards_PG)[:, None]
    found = torch.zeros(count + 1, dtype=torch.bool)
    found[groups_PG[teaching]] = True
    return found[:-1]


def _shares(counted_BT: Tensor, algorithm: str, longest: int) -> Tensor:
    written = counted_BT.sum(1)
    episodes, tokens = float((written > 0).sum()), float(written.sum())
    normalise = ESTIMATORS[algorithm].normalise
    shares = [
        token_scales(normalise, written=int(n), episodes=episodes, tokens=tokens, longest=longest) if n else 0.0
        for n in written
    ]
    return torch.tensor(shares)[:, None] * counted_BT


def mismatch(rows: Rows) -> dict[str, float]:
    """How far sampler and trainer disagree on the tokens that the model wrote."""
    mine = rows.mask_BT
    if not mine.any():
        return {}
    gap = (rows.old_BT - rows.sampled_BT)[mine].abs()
    divergence = k3(rows.sampled_BT[mine], rows.old_BT[mine])
    return {
        "mismatch/mean": float(gap.mean()),
        "mismatch/max": float(gap.max()),
        "mismatch/kl": float(divergence.mean()),
    }


def batch_figures(lessons: Lessons, records: Sequence[dict[str, Any]], written: Sequence[int]) -> dict[str, float]:
    """What the episodes were like, under the names that the other engine uses. `records` are of real rows only."""
    rewards, known = lessons.rewards_PG, ~lessons.rewards_PG.isnan()
    read = sum(record["prompt_read"] for record in records)
    return {
        "reward": float(rewards[known].mean()) if known.any() else math.nan,
        "zero_variance": float(zero_variance(rewards).float().mean()),
        "masked": sum(bool(record["masked"]) for record in records) / max(len(records), 1),
        "tokens": sum(written) / max(len(written), 1),
        "turns": sum(len(record["turn_ends"]) for record in records) / max(len(records), 1),
        "prefix_hits": sum(record["prompt_cached"] for record in records) / max(read, 1),
    }
