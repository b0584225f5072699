"""Losses by name, as learners compute them: sums over target tokens with given weights.

Each is a pure function of the model's outputs (log-probabilities of the targets, or values) and of
columns with one number per target, so it is the same on every engine. Nothing is averaged: losses
of micro-batches, ranks and calls add up. A loss of whole examples (WebRL's) is shared equally by
the example's targets. Auxiliary losses are calls of their own: world tokens take `cross_entropy`.
    named = find_loss("policy")
    loss, metrics = named.compute(logprobs_M, columns, named.settings({"kl": 0.01}))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from terrella.algos.losses import LossInputs, importance_weights, policy_loss, value_loss
from terrella.algos.webrl import ACTOR_LOSSES, ActorLoss, Metrics, ScoredSteps, critic_loss
from terrella.algos.webrl_config import WebRlLossConfig
from terrella.core.errors import ConfigError
from terrella.core.tokens import Head

Columns = Mapping[str, Tensor]
Knobs = Mapping[str, Any]
Compute = Callable[[Tensor, Columns, Knobs], tuple[Tensor, Metrics]]
WEIGHT, EXAMPLE = "weight", "example"
"""Columns that a learner always adds: the weight of a target (1 unless the data have it), and the
index of its example. The targets of an example are neighbours."""


@dataclass(frozen=True, kw_only=True)
class NamedLoss:
    """A loss, and what it reads."""

    compute: Compute
    """(outputs_M, columns, knobs) -> the sum, and metrics with one value per target or example."""
    metrics: tuple[str, ...]
    """The names of all metrics that it may return."""
    head: Head = "token"
    columns: tuple[str, ...] = ()
    """Columns that the data must have."""
    optional: tuple[str, ...] = ()
    knobs: Knobs = field(default_factory=dict)
    """Settings with their defaults."""
    knob_columns: Mapping[str, str] = field(default_factory=dict)
    """Columns that the data must have where a knob is not zero."""

    def settings(self, knobs: Knobs) -> dict[str, Any]:
        """All knobs with their values; unknown ones are refused."""
        unknown = sorted(set(knobs) - set(self.knobs))
        if unknown:
            known = ", ".join(self.knobs) or "none"
            raise ConfigError("loss", f"no knob {', '.join(unknown)}", f"this loss has: {known}")
        return {**self.knobs, **knobs}

    def reads(self, present: frozenset[str], settings: Knobs) -> list[str]:
        """The columns that it reads of data with these; what it needs and they lack is refused."""
        needed = [*self.columns]
        needed += [column for knob, column in self.knob_columns.items() if settings[knob]]
        missing = sorted(set(needed) - present)
        if missing:
            raise ConfigError("loss", f"the data have no column {', '.join(missing)}")
        return sorted({*needed, *({*self.optional, WEIGHT} & present)})


# --- log-probabilities ----------------------------------------------------------------------------


def _cross_entropy(logprobs_M: Tensor, columns: Columns, knobs: Knobs) -> tuple[Tensor, Metrics]:
    return -(logprobs_M * columns[WEIGHT]).sum(), {"nll": -logprobs_M.detach()}


def _policy(logprobs_M: Tensor, columns: Columns, knobs: Knobs) -> tuple[Tensor, Metrics]:
    """Without a column `old` the policy of the ratio is the current one."""
    now = logprobs_M.detach()
    old = columns.get("old", now)
    weights = columns[WEIGHT]
    if knobs["importance_cap"]:
        cap = knobs["importance_cap"]
        weights = weights * importance_weights(old, columns["sampled"], cap=cap)
    inputs = LossInputs(
        logprobs=logprobs_M,
        old_logprobs=old,
        advantages=columns["advantage"],
        weights=weights,
        reference_logprobs=columns.get("reference"),
        episodes=columns[EXAMPLE].long() if knobs["ratio"] == "episode" else None,
    )
    clips = {name: knobs[name] for name in ("clip_low", "clip_high", "kl")}
    loss, metrics = policy_loss(inputs, **clips)
    if "sampled" in columns:
        metrics["mismatch"] = (now - columns["sampled"]).abs()
    return loss, metrics


def _webrl(actor_loss: ActorLoss) -> Compute:
    """A loss of steps, each of them one example: its targets are the tokens of the action."""

    def compute(logprobs_M: Tensor, columns: Columns, knobs: Knobs) -> tuple[Tensor, Metrics]:
        if knobs["normalise"] == "batch":
            raise ConfigError(
                "normalise",
                "batch divides by the tokens of a micro-batch, and losses must add up",
                "use token or step",
            )
        steps = _steps(logprobs_M, columns)
        return actor_loss(steps, WebRlLossConfig(**knobs))

    return compute


def _steps(logprobs_M: Tensor, columns: Columns) -> ScoredSteps:
    """Targets by example: log-probabilities are summed, facts of the step are on every target."""
    changes_M = columns[EXAMPLE].diff(prepend=columns[EXAMPLE][:1]) != 0
    steps_M = changes_M.cumsum(0)
    tokens = steps_M.bincount()
    first = tokens.cumsum(0) - tokens

    def summed(values_M: Tensor) -> Tensor:
        return values_M.new_zeros(len(tokens)).index_add(0, steps_M, values_M)

    return ScoredSteps(
        logprobs=summed(logprobs_M),
        reference=summed(columns["reference"]),
        tokens=tokens,
        weights=summed(columns[WEIGHT]) / tokens,
        **{name: columns[name][first] for name in STEP_FACTS},
    )


STEP_FACTS = ("value", "next_value", "outcome", "steps_to_go")
"""Columns of a step, equal on all its targets."""


# --- values ---------------------------------------------------------------------------------------


def _value(values_M: Tensor, columns: Columns, knobs: Knobs) -> tuple[Tensor, Metrics]:
    error = value_loss(values_M, columns["value"], columns["return"], clip=knobs["clip"])
    return (error * columns[WEIGHT]).sum(), {"value_loss": error.detach()}


def _bce(values_M: Tensor, columns: Columns, knobs: Knobs) -> tuple[Tensor, Metrics]:
    """The value is the logit of `label`, a probability."""
    label = columns["label"]
    loss = functional.binary_cross_entropy_with_logits(
        values_M, label, weight=columns[WEIGHT], reduction="sum"
    )
    return loss, {"accuracy": ((values_M > 0) == (label > 0.5)).float()}


def _webrl_critic(values_M: Tensor, columns: Columns, knobs: Knobs) -> tuple[Tensor, Metrics]:
    """One head whose logits of failure and success are 0 and the value."""
    logits = torch.stack([torch.zeros_like(values_M), values_M], -1)
    loss = critic_loss((logits,), None, columns["outcome"], columns[WEIGHT])
    return loss, {"value": values_M.detach().sigmoid()}


LOSSES: dict[str, NamedLoss] = {
    "cross_entropy": NamedLoss(compute=_cross_entropy, metrics=("nll",)),
    "policy": NamedLoss(
        compute=_policy,
        metrics=("clip_share", "kl", "mismatch"),
        columns=("advantage",),
        optional=("old", "reference", "sampled"),
        knobs={
            "clip_low": 0.2,
            "clip_high": 0.2,
            "kl": 0.0,
            "ratio": "token",
            "importance_cap": 0.0,
        },
        knob_columns={"kl": "reference", "importance_cap": "sampled"},
    ),
    **{
        name: NamedLoss(
            compute=_webrl(actor_loss),
            metrics=("advantage", "log_ratio"),
            columns=("reference", *STEP_FACTS),
            knobs={each.name: each.default for each in fields(WebRlLossConfig)},
        )
        for name, actor_loss in ACTOR_LOSSES.items()
    },
    "value": NamedLoss(
        compute=_value,
        metrics=("value_loss",),
        head="value",
        columns=("value", "return"),
        knobs={"clip": 0.2},
    ),
    "bce": NamedLoss(compute=_bce, metrics=("accuracy",), head="value", columns=("label",)),
    "webrl_critic": NamedLoss(
        compute=_webrl_critic, metrics=("value",), head="value", columns=("outcome",)
    ),
}


def find_loss(name: str, head: Head | None = None) -> NamedLoss:
    """The loss of this name, for models with this head."""
    if name not in LOSSES:
        raise ConfigError("loss", f"there is no loss {name!r}", f"use one of {', '.join(LOSSES)}")
    loss = LOSSES[name]
    if head is not None and loss.head != head:
        fitting = ", ".join(each for each, other in LOSSES.items() if other.head == head)
        raise ConfigError(
            "loss",
            f"{name} is for a {loss.head} head, and this model has a {head} head",
            f"use one of {fitting}",
        )
    return loss
