"""Instances and splits: who an instance is, and which part of the data it belongs to.

An instance is the hash of its canonical initial state; its split is a function of that hash alone. So train,
validation and test are disjoint by construction, for every seed, preset and process.
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

# Streams of one seed are kept apart by a tag, so that the instance, the noise and the policy never share numbers.
INSTANCE_STREAM, NOISE_STREAM, POLICY_STREAM, CORRUPTION_STREAM, SAMPLE_STREAM, TASK_STREAM = range(1, 7)


def plain(value: Any) -> Any:
    """A state (frozen dataclasses, tuples, enums, JSON values) as plain JSON values."""
    if isinstance(value, enum.Enum):
        return value.value
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
    """The split an instance belongs to, from its name alone."""
    place = int(instance, 16) / 16 ** len(instance)
    if place < TEST_SHARE:
        return Split.TEST
    return Split.VALIDATION if place < TEST_SHARE + VALIDATION_SHARE else Split.TRAIN


def stream(tag: int, *seeds: int) -> np.random.Generator:
    """An independent random stream for (tag, seeds); no global generator is read or written."""
    return np.random.default_rng([tag, *(seed % 2**63 for seed in seeds)])
