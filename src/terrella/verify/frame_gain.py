"""The gain of predicted frames over "nothing moves", inside the region that changed.

A pixel that changed is predicted if the reply is closer to its new value than halfway, so that a
blend of several futures, a blur or a ghost of the old and the new earns nothing. What appears and
what vanishes are scored apart and the lower score counts, because an eraser predicts the latter
without knowing what moves where. A change that did not happen costs what a true one earns. The
truth scores 1, the frame before scores 0, and errors that nobody can see cost nothing.
    frame_gain(predicted, truth, before)    # arrays [H, W, C] in [0, 1]
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

VISIBLE = 4 / 255
"""A smaller difference of a pixel (mean over its channels) is not a change."""
NEARLY = 0.99
"""The highest score of a frame that is not the truth."""
WORST_STILL = 0.05
"""Mean error at which a frame in which nothing changed scores 0."""
CONTRAST_SHARE = 0.25
"""A pixel has changed if it differs by more than this share of the frame's typical change."""


def frame_gain(predicted: Array, truth: Array, before: Array) -> float:
    """The score of one predicted frame, in [0, 1]."""
    if np.array_equal(predicted, truth):
        return 1.0
    change = np.abs(truth - before).mean(-1)
    error = np.abs(predicted - truth).mean(-1)
    if change.max(initial=0.0) <= VISIBLE:
        seen = np.maximum(0.0, error - VISIBLE).mean()
        return NEARLY * max(0.0, 1.0 - float(seen) / WORST_STILL)
    contrast = float((change**2).sum() / change.sum())
    changed = change > max(VISIBLE, CONTRAST_SHARE * contrast)
    credit = _credit(error, change, changed)
    # Outside of the region: a difference of half the typical change is a change that is claimed.
    invented = np.clip(2 * np.maximum(0.0, error - VISIBLE) / contrast - 1, 0.0, 1.0) * contrast
    wrong = invented[~changed].sum() - np.minimum(0.0, credit[changed]).sum()
    earned = np.maximum(0.0, credit)
    total = change[changed].sum()
    if earned.sum() <= wrong:  # no part of it can score more than 0
        return 0.0
    parts = what_appears_and_vanishes(truth, before, changed)
    scores = []
    for part, other in (parts, parts[::-1]):
        if change[part].sum() <= SMALL_PART * total:
            part = changed & ~other  # what is between the two takes the place of the part
        weight = change[part].sum()
        if weight > SMALL_PART * total:
            right, rest = earned[part].sum(), earned[changed & ~part].sum()
            scores.append(max(0.0, right - wrong) / weight * (weight + rest) / total)
    return NEARLY * float(min(scores, default=0.0))


SMALL_PART = 0.1
"""A part of the changed region with less of the change is not looked at by itself."""
HALFWAY = 0.45
"""A pixel is predicted if its error is less than this share of its change; a ghost has one half."""


def _credit(error: Array, change: Array, changed: Mask) -> Array:
    """What each pixel earns: its change times 1 if right, 0 from halfway on, down to -1."""
    relative = np.divide(error, change, out=np.zeros_like(error), where=changed)
    earned = np.clip(1 - relative / HALFWAY, 0.0, 1.0) - np.clip(relative - 1, 0.0, 1.0)
    credit: Array = earned * change
    return credit


def what_appears_and_vanishes(truth: Array, before: Array, changed: Mask) -> tuple[Mask, Mask]:
    """Changed pixels that looked like their surroundings before, and those that do so now.

    The surroundings are the pixels that did not change, continued into the region. Those close to
    the region are left out: they may belong to what moved. Pixels that are between the two belong
    to neither part.
    """
    margin = math.ceil(math.sqrt(changed.sum()) / 4)
    hole = _widened(changed, margin)
    around = fill_from_outside(before, changed if hole.all() else hole)
    now, then = (np.abs(image - around).sum(-1) for image in (truth, before))
    return changed & (then < CLEARLY * now), changed & (now < CLEARLY * then)


CLEARLY = 0.5
"""A pixel belongs to a part if one of its values is this much nearer to the surroundings."""


def _widened(mask: Mask, margin: int) -> Mask:
    """The mask and all pixels within the margin of it, in both directions."""
    for axis in (0, 1):
        wide = np.pad(mask, [(margin, margin) if axis == a else (0, 0) for a in (0, 1)])
        sums = np.cumsum(wide, axis=axis, dtype=np.int64)
        sums = np.insert(sums, 0, 0, axis=axis)
        size = mask.shape[axis]
        upper = np.take(sums, range(2 * margin + 1, 2 * margin + 1 + size), axis=axis)
        mask = upper - np.take(sums, range(size), axis=axis) > 0
    return mask


def fill_from_outside(image: Array, hole: Mask) -> Array:
    """The image with its hole filled by the colours around it, smoothly (push and pull)."""
    weight = (~hole).astype(np.float64)[..., None]
    if not weight.any():
        return image
    return np.where(hole[..., None], _pull(image * weight, weight), image)


SMOOTHING = 6
"""Rounds of averaging at each size, so that a gradient is continued."""


def _pull(colour: Array, weight: Array) -> Array:
    """Fill where the weight is 0, from a version of half the size."""
    height, width = weight.shape[:2]
    if weight.all() or height * width == 1:
        return np.divide(colour, weight, out=np.zeros_like(colour), where=weight > 0)
    pads = ((0, height % 2), (0, width % 2), (0, 0))
    half_colour, half_weight = (
        np.pad(x, pads).reshape((height + 1) // 2, 2, (width + 1) // 2, 2, -1).sum((1, 3))
        for x in (colour, weight)
    )
    scale = np.maximum(half_weight, 1.0)
    coarse = _pull(half_colour / scale, np.minimum(half_weight, 1.0))
    rough = coarse.repeat(2, 0).repeat(2, 1)[:height, :width]
    known = np.divide(colour, weight, out=np.zeros_like(colour), where=weight > 0)
    image = np.where(weight > 0, known, rough)
    for _ in range(SMOOTHING):
        wide = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge")
        mean = (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]) / 4
        image = np.where(weight > 0, known, mean)
    return image
