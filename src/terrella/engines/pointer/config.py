"""Settings of the pointer engine. Nothing here imports torch.

PointerLearnerConfig(learning_rate=1e-3, beta=0.2)
"""

from __future__ import annotations

from dataclasses import dataclass

from terrella.algos.webrl_config import WebRlLossConfig
from terrella.core.config import Configurable


@dataclass(frozen=True, kw_only=True)
class PointerLearnerConfig(WebRlLossConfig, Configurable.Config):
    """Optimiser settings of actor and critic, beside the hyperparameters of the losses."""

    learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    batch: int = 64
    epochs: int = 4
    """Passes of the actor over the steps of a phase."""
    critic_epochs: int = 4
    max_norm: float = 1.0
    clip: float = 0.2
    """Used by GRPO."""
    doubt: float = 0.2
    """Label smoothing of imitation: this share of the target is spread over all offered actions.

    A policy that is certain does not explore.
    """
    kl: float = 0.0
    """Weight of a KL penalty, for losses without one of their own."""
