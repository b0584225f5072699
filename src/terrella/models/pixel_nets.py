"""Small networks that read one frame: a policy that acts on pixels, and a classifier that sees success.

Both work on decoded frames as well as on real ones: that is what lets a policy act, and be judged, inside a video
world model. Frames are uint8 (N, H, W, 3).
    net = PixelNet(size=32, outputs=2); net.read(frames) -> [N, 2]
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

AT_ONCE = 512


class PixelNet(nn.Module):
    """Convolutions that keep positions (no pooling at the end), then two linear layers."""

    def __init__(self, size: int, outputs: int, width: int = 16, seed: int = 0) -> None:
        """Weights from the seed."""
        super().__init__()
        self.shape = {"size": size, "outputs": outputs, "width": width}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.net = nn.Sequential(
                nn.Conv2d(3, width, 5, stride=2, padding=2), nn.SiLU(),
                nn.Conv2d(width, width * 2, 3, stride=2, padding=1), nn.SiLU(),
                nn.Conv2d(width * 2, width * 2, 3, stride=2, padding=1), nn.SiLU(),
                nn.Flatten(), nn.Linear(width * 2 * (size // 8) ** 2, 128), nn.SiLU(), nn.Linear(128, outputs),
            )  # fmt: skip

    def forward(self, frames: Tensor) -> Tensor:
        """Of frames (N, 3, H, W), floats around 0."""
        found: Tensor = self.net(frames)
        return found

    @torch.inference_mode()
    def read(self, frames: NDArray[np.uint8]) -> NDArray[np.float64]:
        """What the net says of frames: [N, outputs]."""
        parts = [self(as_input(frames[at : at + AT_ONCE])) for at in range(0, len(frames), AT_ONCE)]
        found: NDArray[np.float64] = torch.cat(parts).double().numpy()
        return found

    def save(self, path: Path) -> None:
        """Safetensors, the shape in their metadata."""
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), path)
        path.with_suffix(".json").write_text(json.dumps(self.shape), "utf-8")

    @classmethod
    def load(cls, path: Path) -> PixelNet:
        """What `save` wrote."""
        net = cls(**json.loads(path.with_suffix(".json").read_text("utf-8")))
        net.load_state_dict(load_file(path))
        return net.eval()


def as_input(frames: NDArray[np.uint8]) -> Tensor:
    """Floats around 0, channels first."""
    return torch.tensor(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).float() / 127.5 - 1.0
