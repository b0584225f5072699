"""Attacks on verifiers of frames: images that predict nothing, and damaged versions of the truth.

No attack may score more than predicting no change, and no damaged truth may score 1. Replies of a
wrong shape (too many frames, smaller frames) must be rejected as unparsable.
    for name, attack in FRAME_ATTACKS.items():
        verdict = verifier.verify(attack(before, truth), truth, before)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from terrella.core.types import Frames

FrameAttack = Callable[[Frames, Frames], Frames]


def _constant(level: int) -> FrameAttack:
    return lambda before, truth: Frames.of(np.full(truth.shape, level, np.uint8))


def _mean_colour(before: Frames, truth: Frames) -> Frames:
    colour = before.array.mean(axis=(0, 1, 2), keepdims=True).round().astype(np.uint8)
    return Frames.of(np.broadcast_to(colour, truth.shape).copy())


def _noise(before: Frames, truth: Frames) -> Frames:
    return Frames.of(np.random.default_rng(0).integers(0, 256, truth.shape, np.uint8))


def _negative(before: Frames, truth: Frames) -> Frames:
    return Frames.of(255 - before.array)


def _mirrored(before: Frames, truth: Frames) -> Frames:
    return Frames.of(before.array[:, :, ::-1].copy())


def _twice(before: Frames, truth: Frames) -> Frames:
    return Frames.of(np.concatenate([truth.array, truth.array]))


def _smaller(before: Frames, truth: Frames) -> Frames:
    return Frames.of(truth.array[:, ::2, ::2].copy())


FRAME_ATTACKS: Mapping[str, FrameAttack] = {
    "black": _constant(0),
    "white": _constant(255),
    "mean colour": _mean_colour,
    "noise": _noise,
    "negative": _negative,
    "mirrored": _mirrored,
    "the truth twice": _twice,
    "the truth, smaller": _smaller,
}


def _dot(truth: Frames, rng: np.random.Generator) -> Frames:
    array = truth.array.copy()
    t, y, x = (int(rng.integers(size)) for size in array.shape[:3])
    array[t, y : y + 4, x : x + 4] = 255 - array[t, y : y + 4, x : x + 4]
    return Frames.of(array)


def _shifted(truth: Frames, rng: np.random.Generator) -> Frames:
    return Frames.of(np.roll(truth.array, 2, axis=2))


def _darker(truth: Frames, rng: np.random.Generator) -> Frames:
    return Frames.of((truth.array // 2).astype(np.uint8))


DAMAGES: tuple[Callable[[Frames, np.random.Generator], Frames], ...] = (_dot, _shifted, _darker)
