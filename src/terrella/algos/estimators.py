"""Policy-gradient algorithms by name, shared by both engines.

ESTIMATORS["dr_grpo"] == Estimator(scale="none", baseline="mean", normalise="constant")
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Estimator(NamedTuple):
    """The three choices that define an algorithm."""

    scale: Literal["std", "none"]
    """What a group's advantages are divided by."""
    baseline: Literal["mean", "leave_one_out"]
    """What is subtracted from a reward."""
    normalise: Literal["episode", "token", "constant"]
    """How the tokens share the loss (see `losses.token_scales`)."""


ESTIMATORS = {
    "grpo": Estimator("std", "mean", "episode"),
    "dr_grpo": Estimator("none", "mean", "constant"),
    "dapo": Estimator("std", "mean", "token"),
    "rloo": Estimator("none", "leave_one_out", "episode"),
    # PPO has a critic instead of groups: only `normalise` is used.
    "ppo": Estimator("none", "mean", "token"),
}
