"""Frame tokenizer: images to ids and back, alone or relative to a context frame.

A context frame takes (size / 8)^2 ids. Every other frame takes only (size / stride)^2: encoder and
decoder see the context frame (the first real frame of the episode) through skip connections and
cross-attention, so the ids encode only what has changed. Both encode differences from the
background, the median image of the data. Names of submodules are keys of saved weights.
    tokenizer = FrameTokenizer(FrameTokenizerConfig(size=64))
    video = tokenizer.encode(frames)
    tokenizer.decode(frames[0], video.frames)
    tokenizer.decode_context(video.context[None])
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from terrella.models.configs import FrameTokenizerConfig
from terrella.models.quantizers import make_quantizer
from terrella.models.tokenizer_base import TrainedTokenizer, VideoIds


class Reconstruction(NamedTuple):
    """Result of a forward pass through encoder and decoder, for training."""

    context: Tensor | None
    """The reconstructed context frames; None of a tokenizer without them."""
    frames: Tensor
    """The reconstructed frames."""
    context_ids: Tensor | None
    frame_ids: Tensor
    loss: Tensor
    """Sum of the quantizers' losses."""


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.GroupNorm(8, channels_out),
        nn.SiLU(),
        nn.Conv2d(channels_out, channels_out, 3, padding=1),
        nn.SiLU(),
    )


class _CellNorm(nn.GroupNorm):
    """GroupNorm of each cell by itself: what moves elsewhere in the image has no part in it."""

    def forward(self, grid: Tensor) -> Tensor:
        cells = grid.permute(0, 2, 3, 1)
        normed: Tensor = super().forward(cells.reshape(-1, grid.shape[1]))
        return normed.view(cells.shape).permute(0, 3, 1, 2)


def _cell_block(width: int) -> nn.Sequential:
    """`_block` for cells that do not see each other."""
    # A cell has one value for each channel: of a group of one or two, a norm leaves nothing.
    groups = 8 if width >= 3 * 8 else 1
    return nn.Sequential(
        nn.Conv2d(width, width, 1),
        _CellNorm(groups, width),
        nn.SiLU(),
        nn.Conv2d(width, width, 1),
        nn.SiLU(),
    )


class Down(nn.Module):
    """Encoder: images to a grid of vectors, by strided patches and then halvings.

    The vectors are batch-normalised before quantization: where most of an image is background, a
    LayerNorm would leave them nearly equal, and they would collapse onto a handful of codes. If
    `local`, a vector sees its own patch and nothing else.
    """

    def __init__(
        self, channels: int, width: int, halvings: int, dimensions: int, *, local: bool = False
    ) -> None:
        super().__init__()
        kernel, padding = (2, 0) if local else (4, 1)
        steps: list[nn.Module] = [
            nn.Conv2d(channels, width, 4, stride=4),
            nn.SiLU(),
            _cell_block(width) if local else _block(width, width),
        ]
        for number in range(halvings):
            wide = width * 2
            steps += [
                nn.Conv2d(width if number == 0 else wide, wide, kernel, stride=2, padding=padding),
                nn.SiLU(),
                _cell_block(wide) if local else _block(wide, wide),
            ]
        self.steps = nn.Sequential(*steps)
        self.out = nn.Conv2d(width * 2, dimensions, 1)
        self.normalise = nn.BatchNorm2d(dimensions, affine=False)

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.normalise(self.out(self.steps(images))).permute(0, 2, 3, 1)
        return vectors


class _Attend(nn.Module):
    """Cross-attention from each cell of a grid to all cells of the context's grid.

    `here` and `there` are the position embeddings of the two grids.
    """

    def __init__(self, width: int, cells: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.here, self.there = (nn.Parameter(0.02 * torch.randn(cells, width)) for _ in range(2))
        nn.init.zeros_(self.out.weight)

    def forward(self, grid: Tensor, context: Tensor) -> Tensor:
        b, c, h, w = grid.shape
        here, there = grid.flatten(2).mT + self.here, context.flatten(2).mT + self.there
        q, k, v = (
            f(x).view(b, -1, self.heads, c // self.heads).transpose(1, 2)
            for f, x in ((self.q, here), (self.k, there), (self.v, there))
        )
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        attended = attended.reshape(b, h * w, c)
        output: Tensor = grid + self.out(attended).mT.reshape(b, c, h, w)
        return output


class Pixels(nn.Module):
    """Decoder: a grid at an eighth of the size to pixels, which are added to a base image.

    The output is zero at initialisation. `shown` is the width of the context's feature maps; 0
    for a decoder without a context.
    """

    def __init__(self, width: int, shown: int) -> None:
        super().__init__()
        self.eighth = _block(width * 2 + shown * 2, width * 2)
        self.quarter = _block(width * 2 + shown, width)
        self.fine = nn.Sequential(
            nn.Conv2d(width + (12 if shown else 0), width, 3, padding=1), nn.SiLU()
        )
        self.out = nn.Conv2d(width, 12, 3, padding=1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(cast(Tensor, self.out.bias))

    def forward(self, grid: Tensor, shown: list[Tensor]) -> Tensor:
        eighth = self.eighth(torch.cat([grid, *shown[:1]], 1))
        quarter = self.quarter(
            torch.cat([functional.interpolate(eighth, scale_factor=2), *shown[1:2]], 1)
        )
        fine = self.fine(
            torch.cat([functional.interpolate(quarter, scale_factor=2), *shown[2:]], 1)
        )
        return functional.pixel_shuffle(self.out(fine), 2)


class _Shown(nn.Module):
    """Feature maps of the context frame at an eighth, a quarter and a half of its size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.quarter = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=4), nn.SiLU(), _block(width, width)
        )
        self.eighth = nn.Sequential(nn.Conv2d(width, width * 2, 4, stride=2, padding=1), nn.SiLU())

    def forward(self, context: Tensor) -> list[Tensor]:
        quarter = self.quarter(context)
        return [self.eighth(quarter), quarter, functional.pixel_unshuffle(context, 2)]


class FrameTokenizer(TrainedTokenizer):
    """See the module's docstring. Images are floats in [0, 1], (N, 3, H, W)."""

    def __init__(self, config: FrameTokenizerConfig) -> None:
        super().__init__(config)
        self.tokens_per_context = math.prod(self.grid)
        width = config.width
        dimensions = len(config.levels)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.context_codes, self.frame_codes = (
                make_quantizer(config.quantizer, config.levels) for _ in range(2)
            )
            self.codes = int(self.context_codes.codes)
            halvings = (config.stride // 4).bit_length() - 1
            self.context_down = Down(3, width, 1, dimensions, local=config.local)
            self.frame_down = Down(6, width, halvings, dimensions, local=config.local)
            self.context_in, self.frame_in = (nn.Conv2d(dimensions, width * 2, 1) for _ in range(2))
            self.context_pixels = Pixels(width, 0)
            self.frame_pixels = Pixels(width, width)
            self.shown = _Shown(width)
            self.attend = _Attend(width * 2, self.tokens_per_context)

    def _context_vectors(self, context: Tensor) -> Tensor:
        vectors: Tensor = self.context_down(2.0 * (context - self.background))
        return vectors

    def _frame_vectors(self, frames: Tensor, context: Tensor) -> Tensor:
        differences = torch.cat([2.0 * (frames - context), 2.0 * (context - self.background)], 1)
        vectors: Tensor = self.frame_down(differences)
        return vectors

    def _rebuild_context(self, codes: Tensor) -> Tensor:
        grid = self.context_in(codes.permute(0, 3, 1, 2))
        return self.background + cast(Tensor, self.context_pixels(grid, []))

    def _rebuild(self, codes: Tensor, context: Tensor) -> Tensor:
        shown = self.shown(2.0 * (context - self.background))
        if len(context) == 1:
            shown = [part.expand(len(codes), -1, -1, -1) for part in shown]
        grid = functional.interpolate(self.frame_in(codes.permute(0, 3, 1, 2)), size=self.grid)
        return context + cast(Tensor, self.frame_pixels(self.attend(grid, shown[0]), shown))

    def forward(self, context: Tensor, frames: Tensor) -> Reconstruction:
        """Reconstruct context frames and one other frame for each."""
        context_codes, context_ids, context_loss = self.context_codes(
            self._context_vectors(context)
        )
        frame_codes, frame_ids, frame_loss = self.frame_codes(self._frame_vectors(frames, context))
        return Reconstruction(
            context=self._rebuild_context(context_codes),
            frames=self._rebuild(frame_codes, context),
            context_ids=context_ids,
            frame_ids=frame_ids,
            loss=context_loss + frame_loss,
        )

    @torch.inference_mode()
    def encode(self, frames: Tensor, context: Tensor | None = None) -> VideoIds:
        """Encode one video (T, 3, H, W).

        Its first frame is the context unless another (3, H, W) is given.
        """
        first = frames[:1] if context is None else context[None]
        _, context_ids, _ = self.context_codes(self._context_vectors(first))
        contexts = first.expand(len(frames), -1, -1, -1)
        _, frame_ids, _ = self.frame_codes(self._frame_vectors(frames, contexts))
        return VideoIds(context_ids.flatten(), frame_ids.flatten(1))

    @torch.inference_mode()
    def decode(self, context: Tensor, frames: Tensor) -> Tensor:
        """Decode the ids of frames [T, N] of a video with this context (3, H, W).

        Returns images (T, 3, H, W).
        """
        codes = self.frame_codes.look_up(frames.view(-1, *self.side))
        return self._rebuild(codes, context[None]).clamp(0.0, 1.0)

    @torch.inference_mode()
    def decode_context(self, context: Tensor) -> Tensor:
        """Decode the ids of context frames [T, C], each alone."""
        codes = self.context_codes.look_up(context.view(-1, *self.grid))
        return self._rebuild_context(codes).clamp(0.0, 1.0)
