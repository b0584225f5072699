"""Attacks on verifiers of frames: images that predict nothing, and damaged versions of the truth.

No attack may score more than predicting no change, and no damaged truth may score 1. Replies of a
wrong shape (too many frames, smaller frames) must be rejected as unparsable. Some attacks use the
truth, as an upper bound of what an eraser or a mean over futures can know.
    for name, attack in FRAME_ATTACKS.items():
        verdict = verifier.verify(attack(before, truth), truth, before)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from terrella.core.types import Frames
from terrella.verify.frame_gain import VISIBLE, what_appears_and_vanishes

FrameAttack = Callable[[Frames, Frames], Frames]
Pixels = NDArray[np.float64]


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


def _blur(images: Pixels, radius: int) -> Pixels:
    """The mean of a square around each pixel."""
    for axis in (1, 2):
        pads = [(radius, radius) if axis == each else (0, 0) for each in range(4)]
        wide = np.pad(images, pads, mode="edge")
        size = images.shape[axis]
        parts = [np.take(wide, range(k, k + size), axis=axis) for k in range(2 * radius + 1)]
        images = np.asarray(np.stack(parts).mean(axis=0), np.float64)
    return images


def _blurred(radius: int) -> FrameAttack:
    return _on_before(lambda images: _blur(images, radius))


def _as_frames(images: Pixels) -> Frames:
    return Frames.of(np.clip(np.round(images), 0, 255).astype(np.uint8))


def _like(before: Frames, truth: Frames) -> Pixels:
    """The last image before the step, as often as the truth has images."""
    images = before.array.astype(np.float64)
    return images if before.shape == truth.shape else np.broadcast_to(images[-1], truth.shape)


def _on_before(change: Callable[[Pixels], Pixels]) -> FrameAttack:
    return lambda before, truth: _as_frames(change(_like(before, truth)))


def _background(images: Pixels) -> Pixels:
    """Every image replaced by the most common colour of each row: what moves is erased."""
    rows = np.median(images, axis=2, keepdims=True)
    return np.broadcast_to(rows, images.shape)


def _empty(images: Pixels) -> Pixels:
    """What stands out from its wide surroundings is replaced by them."""
    around = np.median(images, axis=(1, 2), keepdims=True)
    stands_out = np.abs(images - around).mean(-1, keepdims=True) > 40
    return np.where(stands_out, around, images)


def _neighbours_colour(images: Pixels) -> Pixels:
    """What stands out is filled with the colour to its left."""
    around = np.median(images, axis=(1, 2), keepdims=True)
    filled = images.copy()
    stands_out = np.abs(images - around).mean(-1) > 40
    for column in range(1, images.shape[2]):
        out = stands_out[:, :, column]
        filled[:, :, column][out] = filled[:, :, column - 1][out]
    return filled


def _mean_of_shifts(reach: int) -> Callable[[Pixels], Pixels]:
    """The mean over nine places where everything might be next."""

    def mean(images: Pixels) -> Pixels:
        steps = (-reach, 0, reach)
        shifted = [np.roll(images, (dy, dx), (1, 2)) for dy in steps for dx in steps]
        return np.asarray(np.stack(shifted).mean(axis=0), np.float64)

    return mean


def _over_shifts(choose: np.ufunc) -> Callable[[Pixels], Pixels]:
    """Everything at all places where it might be next, at once."""

    def chosen(images: Pixels) -> Pixels:
        steps = (-3, 0, 3)
        shifted = [np.roll(images, (dy, dx), (1, 2)) for dy in steps for dx in steps]
        return np.asarray(choose.reduce(shifted))

    return chosen


def _changed_erased(before: Frames, truth: Frames) -> Frames:
    """The strongest eraser: it knows where something changes, and shows the surroundings there."""
    images, new = _like(before, truth), truth.array.astype(np.float64)
    erased = []
    for old, real in zip(images / 255, new / 255, strict=True):
        changed = np.abs(old - real).mean(-1) > VISIBLE
        _, vanishes = what_appears_and_vanishes(real, old, changed)
        erased.append(np.where(vanishes[..., None], real, old))
    return _as_frames(np.stack(erased) * 255)


def _ghost(before: Frames, truth: Frames) -> Frames:
    """Half of the image before and half of the truth: the object is in both places."""
    return _as_frames((_like(before, truth) + truth.array) / 2)


def _faint(before: Frames, truth: Frames) -> Frames:
    """A trace of the truth, as the mean over four futures would show it."""
    return _as_frames(0.75 * _like(before, truth) + 0.25 * truth.array)


def _still_noise(before: Frames, truth: Frames) -> Frames:
    noise = np.random.default_rng(0).normal(0, 8, truth.shape)
    return _as_frames(_like(before, truth) + noise)


FRAME_ATTACKS: Mapping[str, FrameAttack] = {
    "black": _constant(0),
    "white": _constant(255),
    "mean colour": _mean_colour,
    "noise": _noise,
    "negative": _negative,
    "the truth twice": _twice,
    "the truth, smaller": _smaller,
    "grey": _constant(128),
    "dark": _constant(64),
    "no change": _on_before(lambda images: images),
    "noise on no change": _still_noise,
    "erase, row by row": _on_before(_background),
    "erase what stands out": _on_before(_empty),
    "erase what changes": _changed_erased,
    "fill with the neighbour's colour": _on_before(_neighbours_colour),
    "ghost": _ghost,
    "faint truth": _faint,
    **{f"blurred, {radius} pixels": _blurred(radius) for radius in (1, 2, 3, 4, 6)},
    **{
        f"mean of shifts by {reach}": _on_before(_mean_of_shifts(reach))
        for reach in (1, 2, 3, 4, 6, 8)
    },
    "brighter": _on_before(lambda images: images + 24),
    "darker": _on_before(lambda images: images * 0.85),
    "more contrast": _on_before(lambda images: 1.5 * images - 64),
    "less contrast": _on_before(lambda images: 0.7 * images + 38),
    "grey scale": _on_before(
        lambda images: np.broadcast_to(images.mean(-1, keepdims=True), images.shape)
    ),
    "coarse": _on_before(lambda images: np.round(images / 64) * 64),
    "other colours": _on_before(lambda images: images[..., ::-1]),
    "sharper": _on_before(lambda images: 2 * images - _blur(images, 1)),
    "halfway to the mean": _on_before(
        lambda images: (images + images.mean(axis=(1, 2), keepdims=True)) / 2
    ),
    "erased and blurred": _on_before(lambda images: _blur(_empty(images), 2)),
    "half erased": _on_before(lambda images: (images + _empty(images)) / 2),
    "brightest of all places": _on_before(_over_shifts(np.maximum)),
    "darkest of all places": _on_before(_over_shifts(np.minimum)),
}
FRAME_GUESSES: Mapping[str, FrameAttack] = {
    "mirrored": _mirrored,
    "upside down": _on_before(lambda images: images[:, ::-1]),
    "everything one pixel to the right": _on_before(lambda images: np.roll(images, 1, 2)),
}
"""Predictions without knowledge. They are no exploits: where the guess is right, it may earn."""


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
