"""Per-frame tokenizer: every frame by itself, (size / stride)^2 ids, without a context frame.

At 256 x 320 with a stride of 16 these are 320 ids. A frame costs more ids than with the compressive
tokenizer (`frame_tokenizer.py`), and does not need to be like any other frame.
    tokenizer = PerFrameTokenizer(FrameTokenizerConfig(kind="per_frame", size=256, columns=320))
    _, ids = tokenizer.write(frames, frames[0])
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from terrella.models.configs import FrameTokenizerConfig
from terrella.models.frame_tokenizer import Down, Pixels, Reconstruction
from terrella.models.quantizers import make_quantizer
from terrella.models.tokenizer_base import TrainedTokenizer, VideoIds


class PerFrameTokenizer(TrainedTokenizer):
    """See the module's docstring. Images are floats in [0, 1], (N, 3, H, W)."""

    def __init__(self, config: FrameTokenizerConfig) -> None:
        super().__init__(config)
        self.tokens_per_context = 0
        dimensions = len(config.levels)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.frame_codes = make_quantizer(config.quantizer, config.levels)
            self.codes = int(self.frame_codes.codes)
            halvings = (config.stride // 4).bit_length() - 1
            self.frame_down = Down(3, config.width, halvings, dimensions, local=config.local)
            self.frame_in = nn.Conv2d(dimensions, config.width * 2, 1)
            self.frame_pixels = Pixels(config.width, 0)

    def _vectors(self, frames: Tensor) -> Tensor:
        vectors: Tensor = self.frame_down(2.0 * (frames - self.background))
        return vectors

    def _rebuild(self, codes: Tensor) -> Tensor:
        grid = functional.interpolate(self.frame_in(codes.permute(0, 3, 1, 2)), size=self.grid)
        return self.background + cast(Tensor, self.frame_pixels(grid, []))

    def forward(self, context: Tensor, frames: Tensor) -> Reconstruction:
        """Reconstruct frames; the context is not looked at."""
        codes, ids, loss = self.frame_codes(self._vectors(frames))
        return Reconstruction(
            context=None, frames=self._rebuild(codes), context_ids=None, frame_ids=ids, loss=loss
        )

    @torch.inference_mode()
    def encode(self, frames: Tensor, context: Tensor | None = None) -> VideoIds:
        """Encode frames (T, 3, H, W), each by itself."""
        _, ids, _ = self.frame_codes(self._vectors(frames))
        return VideoIds(ids.new_zeros(0), ids.flatten(1))

    @torch.inference_mode()
    def decode(self, context: Tensor, frames: Tensor) -> Tensor:
        """Decode the ids of frames [T, N] to images (T, 3, H, W)."""
        codes = self.frame_codes.look_up(frames.view(-1, *self.side))
        return self._rebuild(codes).clamp(0.0, 1.0)
