"""Hyperparameters of WebRL's losses. Nothing here imports torch.

WebRlLossConfig(beta=0.2, lam=0.5)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class WebRlLossConfig:
    """Hyperparameters of the losses; the defaults are the authors'."""

    beta: float = 1.0
    """`webrl_paper`: strength of the regularisation towards the reference.

    One phase changes the log-probability of an action by at most 1/beta nats.
    """
    lam: float = 0.5
    """`webrl_paper`: weight of the one-step advantage.

    `digirl`: decay of the outcome's weight for earlier steps.
    """
    gamma: float = 0.9
    """`webrl_released`: discount of its returns."""
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
