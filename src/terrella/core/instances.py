"""Instances and splits: the identity of an instance, and the split it belongs to.

An instance is the hash of its canonical initial state; its split is a function of that hash alone.
So train, validation and test are disjoint by construction, for every seed, preset and process.
    split_of(instance_id(state)) is Split.TEST
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from typing import Any

import numpy as np

from terrella.core.types import Split, canonical_json

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.1


def plain(value: Any) -> Any:
    """A state (frozen dataclasses, tuples, enums, numbers, JSON values) as plain JSON values."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, np.generic):  # a number of `rng` that was not turned into an int
        return value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def instance_id(key: Any) -> str:
    """The name of an instance: 16 hex digits of the SHA-256 of its canonical initial state."""
    return hashlib.sha256(canonical_json(plain(key)).encode()).hexdigest()[:16]


def split_of(instance: str) -> Split:
    """The split of an instance, a function of its name alone."""
    position = int(instance, 16) / 16 ** len(instance)  # uniform in [0, 1)
    if position < TEST_SHARE:
        return Split.TEST
    return Split.VALIDATION if position < TEST_SHARE + VALIDATION_SHARE else Split.TRAIN
