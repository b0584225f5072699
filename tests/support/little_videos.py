"""Videos without a simulator: 4 x 4 grey pixels, and a tokenizer that needs no training."""

import numpy as np

from terrella.codecs.frames import FrameCodec
from terrella.core.types import Frames
from terrella.data.recorded import Recording, recorded_episode
from terrella.models.action_bins import ActionBins

LEVELS = (0, 60, 120, 180, 240)


def nearest(pixels):
    return int(np.abs(np.array(LEVELS) - pixels.mean()).argmin())


class GreyTokenizer:
    """Two ids per frame: the grey of its left and of its right half."""

    codes, tokens_per_frame, tokens_per_context = len(LEVELS), 2, 1

    def write(self, frames, context):
        return [nearest(context)], [[nearest(f[:, :2]), nearest(f[:, 2:])] for f in frames]

    def read(self, context, ids):
        frames = np.zeros((len(ids), 4, 4, 3), np.uint8)
        for frame, (left, right) in zip(frames, ids, strict=True):
            frame[:, :2] = LEVELS[left]
            frame[:, 2:] = LEVELS[right]
        return frames


def grey(left, right):
    return GreyTokenizer().read(None, [[left, right]])[0]


def film_episode(number=0, frames=6):
    """Each action turns the left half brighter or darker; the right half follows one step later."""
    rng = np.random.default_rng(number)
    actions = rng.choice([-1.0, 1.0], size=(frames, 1))
    left, right, images = int(rng.integers(5)), 0, []
    for action in actions[:, 0]:
        images.append(grey(left, right))
        left, right = (left + int(action)) % 5, left
    return recorded_episode(
        Recording(source="grey", number=number, video=np.stack(images), actions=actions)
    )


def little_codec(window=0):
    return FrameCodec(GreyTokenizer(), ActionBins.fit(np.array([[-1.0], [1.0]]), 2), window=window)


def frame(left, right):
    return Frames.of(grey(left, right)[None])
