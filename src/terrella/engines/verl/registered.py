"""Registers our advantage estimators and our policy loss with verl.

verl's workers import this module (`model.external_lib`). The weight of each token in the loss is
passed in verl's column for per-token weights (`rollout_is_weights`), so that the losses of
micro-batches and ranks add up.
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
from terrella.engines.verl.train_batch import TokenColumns, estimate, group_indices

LOSS = "terrella"


def estimator_name(algorithm: str) -> str:
    """The estimator's name in verl's config."""
    return f"terrella_{algorithm}"


def estimate_for_verl(
    *,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[str],
    config: Any,
    algorithm: str,
    values: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """`train_batch.estimate` with the signature that verl calls."""
    mask = response_mask.bool()
    columns = TokenColumns(
        mask_BT=mask,
        sampled_BT=mask,
        old_BT=mask,
        rewards_BT=token_level_rewards,
        values_BT=values,
    )
    groups = group_indices(list(index), mask.any(1).tolist())
    return estimate(columns, groups, algorithm=algorithm, gamma=config["gamma"], lam=config["lam"])


for _algorithm in ESTIMATORS:
    register_adv_est(estimator_name(_algorithm))(partial(estimate_for_verl, algorithm=_algorithm))


@register_policy_loss(LOSS)  # type: ignore[untyped-decorator]
def weighted_policy_loss(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: Tensor,
) -> tuple[Tensor, dict[str, Any]]:
    """`algos.losses.policy_loss` over the tokens that count.

    It is multiplied by the number of ranks, because verl averages over them afterwards.
    """
    counted = response_mask.bool() & (rollout_is_weights > 0)
    inputs = LossInputs(
        logprobs=log_prob[counted],
        old_logprobs=old_log_prob[counted],
        advantages=advantages[counted],
        weights=rollout_is_weights[counted],
    )
    loss, per_token = policy_loss(
        inputs, clip_low=config.clip_ratio_low, clip_high=config.clip_ratio_high, kl=0.0
    )
    clip_share = per_token["clip_share"].mean().item() if counted.any() else 0.0
    # Adding zero keeps the graph: a micro-batch without counted tokens still needs a backward pass
    # through all parameters.
    loss = (loss + 0.0 * log_prob.sum()) * config.global_batch_info["dp_size"]
    return loss, {"clip_share": clip_share}


def weighted_value_loss(
    model_output: Any, data: Any, dp_group: Any = None, *, clip: float, coefficient: float
) -> tuple[Tensor, dict[str, Any]]:
    """The critic's loss, with the same weights per token."""
    values = no_padding_2_padding(model_output["values"], data)
    ranks = data["dp_size"]
    columns = data.select(
        "values", "returns", "response_mask", "rollout_is_weights"
    ).to_padded_tensor()
    weights = torch.where(columns["response_mask"].bool(), columns["rollout_is_weights"], 0.0)
    error = value_loss(values, columns["values"], columns["returns"], clip=clip)
    loss = (error * weights).sum()
    metric = Metric(value=loss * ranks, aggregation=AggregationType.SUM)
    return coefficient * loss * ranks, {"value_loss": metric}
