"""What a curve of RLVR says about its batches: their values by step, and how many groups they had.

A curve has one row per batch of episodes; `updates` optimiser steps may use the same batch.
    step_values(curve, "reward"), groups_played(curve, 16)
"""

from __future__ import annotations

import math

from terrella.engines.interface import Curve


def step_values(curve: Curve, name: str) -> list[float | None]:
    """A metric of each batch; None where it has none, as the reward of a wholly masked batch."""
    return [_known(row.get(name)) for row in _batches(curve)]


def known_mean(values: list[float | None]) -> float | None:
    """The mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def groups_refilled(curve: Curve) -> int:
    """Groups that were played in the place of groups without variance."""
    return round(sum(value or 0.0 for value in step_values(curve, "refilled")))


def groups_played(curve: Curve, groups: int) -> int:
    """Groups of all batches of `groups`, those included that replaced others."""
    return len(_batches(curve)) * groups + groups_refilled(curve)


def _batches(curve: Curve) -> Curve:
    return [row for row in curve if "reward" in row]


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(float(value), 4)
