"""Metrics of predicted frames beside their verdict: MSE, PSNR, SSIM, and the repetition rate.

Pixels are floats in [0, 1] of shape (time, height, width, channels).
    frame_metrics(predicted, real)["psnr"]
    repetition_rate([video_as_token_ids, ...])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
WINDOW, SIGMA = 11, 1.5
"""SSIM's Gaussian window, as in the paper of 2004."""
K1, K2 = 0.01, 0.03


def frame_metrics(predicted: Array, real: Array) -> dict[str, float]:
    """MSE, PSNR (mean over frames, in dB, at most 100) and SSIM (mean over frames and channels)."""
    mse = ((predicted - real) ** 2).mean(axis=(1, 2, 3))
    psnr = -10.0 * np.log10(np.maximum(mse, 1e-10))
    return {
        "mse": float(mse.mean()),
        "psnr": float(psnr.mean()),
        "ssim": float(ssim(predicted, real).mean()),
    }


def ssim(first: Array, second: Array) -> Array:
    """Structural similarity of each frame, [T]."""
    a, b = (np.moveaxis(x, -1, 1) for x in (first, second))
    mean_a, mean_b = _blur(a), _blur(b)
    var_a, var_b = _blur(a * a) - mean_a**2, _blur(b * b) - mean_b**2
    cov = _blur(a * b) - mean_a * mean_b
    c1, c2 = K1**2, K2**2
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    similarity: Array = (luminance * (2 * cov + c2) / (var_a + var_b + c2)).mean(axis=(1, 2, 3))
    return similarity


def _blur(x: Array) -> Array:
    """Separable Gaussian blur without padding."""
    offset = np.arange(WINDOW) - WINDOW // 2
    kernel = np.exp(-(offset**2) / (2 * SIGMA**2))
    kernel = kernel / kernel.sum()
    for axis in (-2, -1):
        windows = np.lib.stride_tricks.sliding_window_view(x, WINDOW, axis=axis)
        x = windows @ kernel
    return x


def repetition_rate(videos: Sequence[Sequence[Sequence[int]]]) -> float:
    """Fraction of videos whose last two frames are the same tokens: the video has frozen."""
    frozen = [len(video) > 1 and tuple(video[-1]) == tuple(video[-2]) for video in videos]
    return sum(frozen) / len(frozen)
