"""Small networks on single frames: policies that act on pixels, and success classifiers.

They take decoded frames as well as real ones, so that a policy can act and be evaluated inside a
video world model. Frames are uint8 (N, H, W, 3).
    net = PixelNet(size=32, outputs=2)
    net.read(frames)    # [N, 2]
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from terrella.core.untrusted import read_json

BATCH_SIZE = 512


class PixelNet(nn.Module):
    """Convolutions without a final pooling (positions matter), then two linear layers."""

    def __init__(
        self, size: int, outputs: int, width: int = 16, seed: int = 0, columns: int = 0
    ) -> None:
        """`size` is the height of a frame, and its width unless `columns` is given."""
        super().__init__()
        columns = columns or size
        self.shape = {"size": size, "columns": columns, "outputs": outputs, "width": width}
        cells = math.ceil(size / 8) * math.ceil(columns / 8)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = nn.Sequential(
                nn.Conv2d(3, width, 5, stride=2, padding=2),
                nn.SiLU(),
                nn.Conv2d(width, width * 2, 3, stride=2, padding=1),
                nn.SiLU(),
                nn.Conv2d(width * 2, width * 2, 3, stride=2, padding=1),
                nn.SiLU(),
                nn.Flatten(),
                nn.Linear(width * 2 * cells, 128),
                nn.SiLU(),
                nn.Linear(128, outputs),
            )

    def forward(self, frames: Tensor) -> Tensor:
        """Outputs for frames (N, 3, H, W), floats in [-1, 1]."""
        outputs: Tensor = self.net(frames)
        return outputs

    @torch.inference_mode()
    def read(self, frames: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Outputs for uint8 frames: [N, outputs]."""
        batches = [
            self(as_input(frames[start : start + BATCH_SIZE]))
            for start in range(0, len(frames), BATCH_SIZE)
        ]
        outputs: NDArray[np.float64] = torch.cat(batches).double().numpy()
        return outputs

    def save(self, path: Path) -> None:
        """Write the weights as safetensors, and the sizes as JSON beside them."""
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), path)
        path.with_suffix(".json").write_text(json.dumps(self.shape), "utf-8")

    @classmethod
    def load(cls, path: Path) -> PixelNet:
        net = cls(**read_json(path.with_suffix(".json")))
        net.load_state_dict(load_file(path))
        return net.eval()


def as_input(frames: NDArray[np.uint8]) -> Tensor:
    """Frames as floats in [-1, 1], channels first."""
    return torch.tensor(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).float() / 127.5 - 1.0
