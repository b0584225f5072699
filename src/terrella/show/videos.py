"""Compare a real and a predicted video, with the difference beside them.

Frames are uint8 arrays of shape (time, height, width, 3).
    video_strip(first, real, predicted)     # one picture: three rows of frames
    side_by_side(first, real, predicted)    # a video: three pictures in each frame
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from terrella.show.png import png

FrameArray = NDArray[np.uint8]
ENLARGE = 2
GAP = 2


def difference(real: FrameArray, predicted: FrameArray) -> FrameArray:
    """Return an image that is white where both agree and darker the more they differ."""
    pixels: FrameArray = (255 - np.abs(real.astype(np.int16) - predicted)).astype(np.uint8)
    return pixels


def video_strip(first: FrameArray, real: FrameArray, predicted: FrameArray) -> FrameArray:
    """Draw real, predicted and difference as rows of frames.

    Time goes to the right; the first column is the frame that the model was given.
    """
    given = first[None]
    top = _row(np.concatenate([given, real]))
    middle = _row(np.concatenate([given, predicted]))
    bottom = _row(np.concatenate([np.full_like(given, 255), difference(real, predicted)]))
    gap = np.full((2 * GAP, top.shape[1], 3), 255, np.uint8)
    return np.concatenate([top, middle, bottom, gap])


def side_by_side(first: FrameArray, real: FrameArray, predicted: FrameArray) -> FrameArray:
    """Return a video with real, predicted and difference next to each other in every frame."""
    real_video = np.concatenate([first[None], real])
    predicted_video = np.concatenate([first[None], predicted])
    pairs = zip(real_video, predicted_video, strict=True)
    return np.stack([_row(np.stack([a, b, difference(a, b)])) for a, b in pairs])


def write_picture(path: Path, picture: FrameArray) -> None:
    """Write a PNG file, and its folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(picture))


def _row(video: FrameArray) -> FrameArray:
    """Put frames next to each other, enlarged, with white between them.

    Sides stay even, as video codecs require.
    """
    large = video.repeat(ENLARGE, axis=1).repeat(ENLARGE, axis=2)
    framed = np.pad(large, ((0, 0), (GAP, 0), (0, GAP), (0, 0)), constant_values=255)
    return np.concatenate(list(framed), axis=1)
