"""What a step gives beside its observation: checked wherever a step comes in.

A NaN or an infinite reward would pass through means, stores and advantages without an error.
    check_step("sokoban", reward, terminated, truncated)
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from terrella.core.errors import WorldError

REMEDY = "a step gives a finite number as reward, and True or False as terminated and truncated"


def check_step(world: str, reward: Any, terminated: Any, truncated: Any) -> None:
    """Raise a WorldError for a reward that is no finite number, and for an end that is no bool."""
    if not is_finite(reward):
        raise WorldError(world, f"gave the reward {_shown(reward)}", REMEDY)
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, bool | np.bool_):
            raise WorldError(world, f"gave {name}={_shown(value)}", REMEDY)


def is_finite(value: Any) -> bool:
    """Whether a value is a number that is finite as a float."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer of more than 308 digits
        return False


def _shown(value: Any) -> str:
    return (
        "of too many digits"
        if isinstance(value, int) and not is_finite(value)
        else repr(value)[:80]
    )
