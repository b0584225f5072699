"""Our page of maths in verl's registries: an advantage estimator per algorithm, and the policy loss.

verl's workers import this file (`model.external_lib`). A token's share of the loss travels in the column that verl has
for per-token weights (`rollout_is_weights`), so that micro-batches and ranks simply add up.
    algorithm.adv_estimator=terrella_grpo actor_rollout_ref.actor.policy_loss.loss_mode=terrella
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from terrella.algos.estimators import ESTIMATORS
from terrella.algos.losses import LossInputs, policy_loss, value_loss
from terrella.engines.verl.lessons import Rows, estimate, groups_of

LOSS = "terrella"


def estimator_name(algorithm: str) -> str:
    """How verl's config calls it."""
    return f"terrella_{algorithm}"


def estimate_for_verl(
    *, token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[str], config: Any, algorithm: str,
    values: Tensor | None = None, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Verl's signature around `lessons.estimate`."""
    mask = response_mask.bool()
    rows = Rows(mask_BT=mask, sampled_BT=mask, old_BT=mask, paid_BT=token_level_rewards, values_BT=values)
    groups = groups_of(list(index), mask.any(1).tolist())
    return estimate(rows, groups, algorithm=algorithm, gamma=config["gamma"], lam=config["lam"])


for _algorithm in ESTIMATORS:
    register_adv_est(estimator_name(_algorithm))(partial(estimate_for_verl, algorithm=_algorithm))


@register_policy_loss(LOSS)  # type: ignore[untyped-decorator]
def weighted_policy_loss(
    *, old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, response_mask: Tensor, loss_agg_mode: str,
    config: Any, rollout_is_weights: Tensor,
) -> tuple[Tensor, dict[str, Any]]:  # fmt: skip
    """`algos.losses.policy_loss` over the tokens that count, times the ranks: verl averages over them afterwards."""
    mine = response_mask.bool() & (rollout_is_weights > 0)
    inputs = LossInputs(
        logprobs=log_prob[mine], old_logprobs=old_log_prob[mine], advantages=advantages[mine],
        weights=rollout_is_weights[mine],
    )  # fmt: skip
    loss, found = policy_loss(inputs, clip_low=config.clip_ratio_low, clip_high=config.clip_ratio_high, kl=0.0)
    share = found["clip_share"].mean().item() if mine.any() else 0.0
    # A micro-batch without a lesson still owes its ranks a backward pass through all parameters.
    return (loss + 0.0 * log_prob.sum()) * config.global_batch_info["dp_size"], {"clip_share": share}


def weighted_value_loss(
    model_output: Any, data: Any, dp_group: Any = None, *, clip: float, coefficient: float
) -> tuple[Tensor, dict[str, Any]]:
    """The critic's, with the same shares."""
    values = no_padding_2_padding(model_output["values"], data)
    ranks = data["dp_size"]
    columns = data.select("values", "returns", "response_mask", "rollout_is_weights").to_padded_tensor()
    weights = torch.where(columns["response_mask"].bool(), columns["rollout_is_weights"], 0.0)
    error = value_loss(values, columns["values"], columns["returns"], clip=clip)
    loss = (error * weights).sum()
    return coefficient * loss * ranks, {"value_loss": Metric(value=loss * ranks, aggregation=AggregationType.SUM)}
