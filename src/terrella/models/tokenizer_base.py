"""What all frame tokenizers share: numpy arrays in and out, and folders on disk.

context_ids, ids = tokenizer.write(frames, context)
tokenizer.read(context, ids)
tokenizer.save(Path("runs/films/tokenizer"))
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from terrella.core.config import dump
from terrella.core.files import replace_folder, scratch_folder, write_json
from terrella.core.integrity import write_listing
from terrella.models.configs import FrameTokenizerConfig

WEIGHTS, CONFIG = "tokenizer.safetensors", "tokenizer.json"
AT_ONCE = 64
"""Frames that are encoded or decoded in one pass."""
FrameArray = NDArray[np.uint8]


class VideoIds(NamedTuple):
    """A video as ids: of its context frame [C], and of each frame [T, N]."""

    context: Tensor
    frames: Tensor


class BaseTokenizer(nn.Module, abc.ABC):
    """Frames to ids and back. Images are floats in [0, 1], (N, 3, H, W)."""

    background: Tensor
    codes: int
    """Number of different codes."""
    tokens_per_frame: int
    tokens_per_context: int
    """0 for a tokenizer that encodes every frame by itself."""

    @abc.abstractmethod
    def encode(self, frames: Tensor, context: Tensor | None = None) -> VideoIds: ...

    @abc.abstractmethod
    def decode(self, context: Tensor, frames: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def description(self) -> dict[str, Any]:
        """What a folder needs beside the weights, as plain JSON."""

    # --- on numpy arrays and lists ----------------------------------------------------------------

    def write(self, frames: FrameArray, context: FrameArray) -> tuple[list[int], list[list[int]]]:
        """Ids of a context frame (H, W, 3) and of frames (T, H, W, 3) that follow it."""
        first = self._floats(context[None])[0]
        pieces = range(0, len(frames), AT_ONCE)
        parts = [self.encode(self._floats(frames[at : at + AT_ONCE]), first) for at in pieces]
        ids = [row for part in parts for row in part.frames.tolist()]
        return parts[0].context.tolist(), ids

    def read(self, context: FrameArray, ids: Sequence[Sequence[int]]) -> FrameArray:
        """Decode the ids of frames of a video with this context (H, W, 3) to (T, H, W, 3)."""
        first = self._floats(context[None])[0]
        rows = torch.tensor(ids, device=first.device)
        pieces = [rows[at : at + AT_ONCE] for at in range(0, len(rows), AT_ONCE)]
        images = torch.cat([self.decode(first, piece) for piece in pieces])
        frames: FrameArray = (255.0 * images).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        return frames

    def _floats(self, images: FrameArray) -> Tensor:
        pixels = torch.tensor(np.ascontiguousarray(images)).to(self.background.device)
        return pixels.permute(0, 3, 1, 2).float() / 255.0

    # --- on disk ----------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write a folder that is complete or absent: weights, config, and their hashes."""
        fresh = scratch_folder(folder)
        fresh.mkdir(parents=True)
        self.write_files(fresh)
        write_listing(fresh)
        replace_folder(fresh, folder)

    def write_files(self, folder: Path) -> None:
        """Write the weights as safetensors and the config as JSON."""
        weights = {name: value.contiguous() for name, value in self.state_dict().items()}
        save_file(weights, folder / WEIGHTS)
        write_json(folder / CONFIG, self.description())

    def load_weights(self, path: Path) -> None:
        self.load_state_dict(load_file(path))


class TrainedTokenizer(BaseTokenizer):
    """A tokenizer of our own, which knows the background of its videos."""

    def __init__(self, config: FrameTokenizerConfig) -> None:
        """Weights come from the seed; the background is grey until `learn_background`."""
        super().__init__()
        self.config = config
        rows, columns = config.size, config.columns or config.size
        self.grid = (rows // 8, columns // 8)
        self.side = (rows // config.stride, columns // config.stride)
        self.tokens_per_frame = math.prod(self.side)
        self.register_buffer("background", torch.full((3, rows, columns), 0.5))

    def learn_background(self, frames: Tensor) -> None:
        """Set the background to the median of the frames at each pixel."""
        self.background.copy_(frames.median(0).values)

    def description(self) -> dict[str, Any]:
        return dump(self.config)
