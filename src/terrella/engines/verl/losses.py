"""The losses of verl's actor and critic: those of `algos`, on verl's padded columns.

They replace verl's own (`set_loss_fn`), so that both engines have one policy loss, one KL term and
one auxiliary loss. The weight of each token in the whole batch travels in a column, so that the
losses of micro-batches and ranks add up. verl averages over ranks afterwards, hence `dp_size`.
    actor.set_loss_fn(ActorLoss.of(settings))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from terrella.algos.auxiliary import world_token_loss
from terrella.algos.estimators import ESTIMATORS
from terrella.algos.losses import LossInputs, policy_loss, value_loss
from terrella.engines.configs import RlvrConfig

ACTOR_COLUMNS = ("response_mask", "old_log_probs", "advantages", "policy_weights")


@dataclass(frozen=True, kw_only=True)
class ActorLoss:
    """The actor's loss, as a function that verl sends to its workers."""

    clip_range: tuple[float, float]
    kl: float
    entropy_bonus: float
    world_loss: float
    by_episode: bool
    """Whether an episode has one ratio."""

    @classmethod
    def of(cls, settings: RlvrConfig) -> ActorLoss:
        return cls(
            clip_range=settings.clip_range,
            kl=settings.kl,
            entropy_bonus=settings.entropy_bonus,
            world_loss=settings.world_loss,
            by_episode=ESTIMATORS[settings.algorithm].ratio == "episode",
        )

    def __call__(
        self, model_output: Any, data: Any, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """`algos.losses.policy_loss` where tokens count, and the loss on the world's tokens."""
        logprobs = no_padding_2_padding(model_output["log_probs"], data)
        optional = {"ref_log_prob": self.kl, "world_weights": self.world_loss}
        names = [*ACTOR_COLUMNS, *(name for name, weight in optional.items() if weight)]
        columns = data.select(*names).to_padded_tensor()
        entropy = None
        if self.entropy_bonus:  # verl computes it because its own coefficient is set
            entropy = no_padding_2_padding(model_output["entropy"], data)
        loss, metrics = self._policy(logprobs, entropy, columns)
        if self.world_loss:
            on_world = world_token_loss(logprobs, columns["world_weights"])
            loss = loss + self.world_loss * on_world
            metrics["world_loss"] = _sum(on_world.detach() * data["dp_size"])
        return loss * data["dp_size"], metrics

    def _policy(
        self, logprobs: Tensor, entropy: Tensor | None, columns: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        counted = columns["response_mask"].bool() & (columns["policy_weights"] > 0)
        rows = torch.arange(len(counted), device=counted.device)[:, None].expand(counted.shape)
        inputs = LossInputs(
            logprobs=logprobs[counted],
            old_logprobs=columns["old_log_probs"][counted],
            advantages=columns["advantages"][counted],
            weights=columns["policy_weights"][counted],
            reference_logprobs=columns["ref_log_prob"][counted] if self.kl else None,
            episodes=rows[counted] if self.by_episode else None,
            entropy=None if entropy is None else entropy[counted],
        )
        low, high = self.clip_range
        loss, per_token = policy_loss(
            inputs, clip_low=low, clip_high=high, kl=self.kl, entropy_bonus=self.entropy_bonus
        )
        metrics = {
            name: Metric(
                value=values.mean().item() if counted.any() else 0.0,
                aggregation=AggregationType.MEAN,
            )
            for name, values in per_token.items()
        }
        # Adding zero keeps the graph: a micro-batch without counted tokens still needs a backward
        # pass through all parameters.
        return loss + 0.0 * logprobs.sum(), metrics


def critic_loss(settings: RlvrConfig) -> partial[tuple[Tensor, dict[str, Any]]]:
    """The critic's loss, as a function that verl sends to its workers."""
    return partial(
        weighted_value_loss, clip=settings.value_clip, coefficient=settings.value_coefficient
    )


def weighted_value_loss(
    model_output: Any, data: Any, dp_group: Any = None, *, clip: float, coefficient: float
) -> tuple[Tensor, dict[str, Any]]:
    """The critic's loss, with the weights of the policy loss before importance weights."""
    values = no_padding_2_padding(model_output["values"], data)
    ranks = data["dp_size"]
    columns = data.select("values", "returns", "value_weights").to_padded_tensor()
    error = value_loss(values, columns["values"], columns["returns"], clip=clip)
    loss = (error * columns["value_weights"]).sum()
    return coefficient * loss * ranks, {"value_loss": _sum(loss * ranks)}


def _sum(value: Tensor) -> Metric:
    return Metric(value=value, aggregation=AggregationType.SUM)
