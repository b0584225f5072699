"""Hyperparameters of WebRL's losses and updates. Nothing here imports torch.

WebRlLossConfig(beta=0.2, lam=0.5)
WebRlUpdateConfig(learning_rate=1e-6, batch=128, epochs=1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from terrella.core.bounds import check_above_zero, check_not_negative
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class WebRlLossConfig:
    """Hyperparameters of the losses; the defaults are the authors'."""

    beta: float = 1.0
    """`webrl_paper`: strength of the regularisation towards the reference.

    One phase changes the log-probability of an action by at most 1/beta nats; with
    `normalise="token"`, by so much for each of its tokens.
    """
    lam: float = 0.5
    """`webrl_paper`: weight of the one-step advantage.

    `digirl`: decay of the outcome's weight for earlier steps.
    """
    gamma: float = 0.9
    """`webrl_released`: discount of its returns; 1 for none."""
    normalise: Literal["token", "step", "batch"] = "token"
    """Divide the log-ratio by the action's tokens, by nothing, or by the batch's positive tokens.

    The last is what the released code does with batches larger than one.
    """
    temperature: float = 0.2
    """`awr`: advantages are divided by this before exp."""
    weight_cap: float = 20.0
    """`awr`: largest weight of a step."""
    threshold: float = 0.05
    """`digirl`: steps above this advantage are imitated."""

    def __post_init__(self) -> None:
        """Refuse numbers with which a loss trains nothing, or is not a number."""
        if not 0 < self.gamma <= 1:
            raise ConfigError(
                "learner.gamma", f"{self.gamma:g} is not a discount", "use 0 < gamma <= 1"
            )
        for name in ("beta", "temperature"):
            value = getattr(self, name)
            if value <= 0:
                raise ConfigError(f"learner.{name}", f"must be above 0, not {value:g}")


@dataclass(frozen=True, kw_only=True)
class WebRlUpdateConfig(WebRlLossConfig, Configurable.Config):
    """Optimiser settings of actor and critic, beside the hyperparameters of the losses."""

    learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    imitation_learning_rate: float | None = None
    """Learning rate of the imitation before the first phase; None is `learning_rate`."""
    batch: int = 64
    """Steps of attempts in one optimiser step."""
    epochs: int = 4
    """Passes of the actor over the steps of a phase."""
    critic_epochs: int = 4
    critic_folds: int = 1
    """Above 1, each task's values come from a critic that was not fitted to it.

    A large critic knows the outcomes that it was fitted to, which leaves no advantages. These
    critics begin anew in each phase and see only its steps: replayed tasks are of earlier phases.
    """
    max_norm: float = 1.0
    clip: float = 0.2
    """Used by GRPO."""
    doubt: float = 0.2
    """Label smoothing of imitation: this share of the target is spread over all offered actions.

    A policy that is certain does not explore.
    """
    kl: float = 0.0
    """Weight of a KL penalty, for losses without one of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self)
        check_above_zero(self, "learning_rate", "critic_learning_rate")
        for name in ("batch", "critic_folds"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"learner.{name}", f"must be 1 or more, not {value}")
