"""Algorithms by name: how a group's verdicts become advantages, and how tokens share the loss. Both engines read this.

ESTIMATORS["dr_grpo"] -> Estimator(scale="none", baseline="mean", normalise="constant")
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Estimator(NamedTuple):
    """Three choices make an algorithm."""

    scale: Literal["std", "none"]
    baseline: Literal["mean", "leave_one_out"]
    normalise: Literal["episode", "token", "constant"]


ESTIMATORS = {
    "grpo": Estimator("std", "mean", "episode"),
    "dr_grpo": Estimator("none", "mean", "constant"),
    "dapo": Estimator("std", "mean", "token"),
    "rloo": Estimator("none", "leave_one_out", "episode"),
    "ppo": Estimator("none", "mean", "token"),  # a critic takes the group's place; only the normalisation is used
}
