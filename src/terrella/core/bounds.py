"""Bounds of numbers in a config, checked when it is made: `--dry-run` and `--set` see them.

def __post_init__(self) -> None:
    check_least(self, epochs=1, warmup_steps=0)
    check_above_zero(self, "learning_rate")
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from terrella.core.errors import ConfigError


def check_least(config: Any, **least: float) -> None:
    """Refuse fields below their least value, by name; None is a field that is not set."""
    for name, bound in least.items():
        value = getattr(config, name)
        if value is not None and not (math.isfinite(value) and value >= bound):
            raise ConfigError(
                name, f"is {value}, and must be {bound} or more", f"set {name}={bound} or more"
            )


def check_not_negative(config: Any) -> None:
    """Refuse negative numbers in any field of this config."""
    names = (field.name for field in fields(config))
    numbers = [name for name in names if type(getattr(config, name)) in (int, float)]
    check_least(config, **dict.fromkeys(numbers, 0))


def check_above_zero(config: Any, *names: str) -> None:
    """Refuse numbers that are not above 0, by name."""
    for name in names:
        value = getattr(config, name)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(name, f"is {value}, and must be above 0", f"set {name} above 0")


def check_share(config: Any, *names: str) -> None:
    """Refuse numbers outside of 0 to 1, by name."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value <= 1:
            raise ConfigError(
                name, f"is {value}, and must be from 0 to 1", f"set {name} from 0 to 1"
            )
