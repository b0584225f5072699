"""Policy-gradient algorithms by name, shared by both engines (docs/algorithms.md compares them).

ESTIMATORS["dr_grpo"] == Estimator(scale="none", baseline="mean", normalise="constant")
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Estimator(NamedTuple):
    """The choices that define an algorithm."""

    scale: Literal["std", "none"]
    """What a group's advantages are divided by."""
    baseline: Literal["mean", "leave_one_out"]
    """What is subtracted from a reward."""
    normalise: Literal["episode", "token", "constant"]
    """How the tokens share the loss (see `losses.token_scales`)."""
    ratio: Literal["token", "episode"] = "token"
    """One probability ratio per token, or one for the whole episode: the product of its tokens'."""
    clip_high: float | None = None
    """The upper clip where the user sets none; None is the lower one."""
    refill: int = 0
    """Rounds that replace groups without variance, where the user sets none."""


ESTIMATORS = {
    "grpo": Estimator("std", "mean", "episode"),
    "dr_grpo": Estimator("none", "mean", "constant"),
    # The paper samples until a batch is full; ten rounds is the bound of verl's DAPO recipe.
    "dapo": Estimator("std", "mean", "token", clip_high=0.28, refill=10),
    # The mean over an episode of its one ratio is that ratio: an episode counts as one action.
    "rloo": Estimator("none", "leave_one_out", "episode", ratio="episode"),
    # PPO has a critic instead of groups: only `normalise` is used.
    "ppo": Estimator("none", "mean", "token"),
}
