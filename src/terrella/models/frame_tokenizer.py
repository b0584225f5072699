"""Frame tokenizers: a picture to a few ids and back. Per frame, or compressive: what changed since a context frame.

A frame alone takes (size / 8)^2 ids. The compressive tokenizer writes every later frame in (size / stride)^2: encoder
and decoder are shown the context frame (the real one that an episode began with), by skip connections and by
cross-attention, so that ids only say what is new. Both build on what never changes: the background of the data.
    tokenizer = FrameTokenizer.Config(size=64).build(); film = tokenizer.encode(frames)
    tokenizer.decode(frames[0], film.frames); tokenizer.decode_context(film.context[None])
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from terrella.core.config import Configurable, dump, load
from terrella.models.quantizers import make_quantizer

WEIGHTS, CONFIG = "tokenizer.safetensors", "tokenizer.json"


Pictures = NDArray[np.uint8]


class Film(NamedTuple):
    """A film as ids: of its context frame [C], and of each frame [T, N]."""

    context: Tensor
    frames: Tensor


class Coded(NamedTuple):
    """A pass of the whole tokenizer, for training."""

    context: Tensor
    """The context frames, rebuilt."""
    frames: Tensor
    """The frames, rebuilt."""
    context_ids: Tensor
    frame_ids: Tensor
    loss: Tensor
    """The quantizers' own."""


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.GroupNorm(8, channels_out), nn.SiLU(),
        nn.Conv2d(channels_out, channels_out, 3, padding=1), nn.SiLU(),
    )  # fmt: skip


def _floats(pictures: Pictures) -> Tensor:
    return torch.tensor(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 255.0


class _Down(nn.Module):
    """Pictures to a grid of vectors: a strided patch, then halvings.

    Vectors are normalised over the batch before they are quantized: where most places are background, a LayerNorm
    leaves them all alike and they fall onto a handful of codes.
    """

    def __init__(self, channels: int, width: int, halvings: int, dimensions: int) -> None:
        super().__init__()
        steps: list[nn.Module] = [nn.Conv2d(channels, width, 4, stride=4), nn.SiLU(), _block(width, width)]
        for number in range(halvings):
            wide = width * 2
            steps += [nn.Conv2d(width if number == 0 else wide, wide, 4, stride=2, padding=1), nn.SiLU()]
            steps.append(_block(wide, wide))
        self.steps = nn.Sequential(*steps)
        self.out, self.normalise = nn.Conv2d(width * 2, dimensions, 1), nn.BatchNorm2d(dimensions, affine=False)

    def forward(self, pictures: Tensor) -> Tensor:
        found: Tensor = self.normalise(self.out(self.steps(pictures))).permute(0, 2, 3, 1)
        return found


class _Attend(nn.Module):
    """Each place of a grid looks at every place of the context's grid."""

    def __init__(self, width: int, places: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.here, self.there = (nn.Parameter(0.02 * torch.randn(places, width)) for _ in range(2))
        nn.init.zeros_(self.out.weight)

    def forward(self, grid: Tensor, context: Tensor) -> Tensor:
        b, c, h, w = grid.shape
        here, there = grid.flatten(2).mT + self.here, context.flatten(2).mT + self.there
        q, k, v = (
            f(x).view(b, -1, self.heads, c // self.heads).transpose(1, 2)
            for f, x in ((self.q, here), (self.k, there), (self.v, there))
        )
        seen = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        found: Tensor = grid + self.out(seen).mT.reshape(b, c, h, w)
        return found


class _Pixels(nn.Module):
    """From the grid at an eighth of the size to pixels that are added to what is known; at first nothing is added."""

    def __init__(self, width: int, shown: int) -> None:
        super().__init__()
        self.eighth, self.quarter = _block(width * 2 + shown * 2, width * 2), _block(width * 2 + shown, width)
        self.fine = nn.Sequential(nn.Conv2d(width + (12 if shown else 0), width, 3, padding=1), nn.SiLU())
        self.out = nn.Conv2d(width, 12, 3, padding=1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(cast(Tensor, self.out.bias))

    def forward(self, grid: Tensor, shown: list[Tensor]) -> Tensor:
        eighth = self.eighth(torch.cat([grid, *shown[:1]], 1))
        quarter = self.quarter(torch.cat([functional.interpolate(eighth, scale_factor=2), *shown[1:2]], 1))
        fine = self.fine(torch.cat([functional.interpolate(quarter, scale_factor=2), *shown[2:]], 1))
        return functional.pixel_shuffle(self.out(fine), 2)


class _Shown(nn.Module):
    """The context frame as maps at an eighth, a quarter and a half of its size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.quarter = nn.Sequential(nn.Conv2d(3, width, 4, stride=4), nn.SiLU(), _block(width, width))
        self.eighth = nn.Sequential(nn.Conv2d(width, width * 2, 4, stride=2, padding=1), nn.SiLU())

    def forward(self, context: Tensor) -> list[Tensor]:
        quarter = self.quarter(context)
        return [self.eighth(quarter), quarter, functional.pixel_unshuffle(context, 2)]


class FrameTokenizer(Configurable, nn.Module):
    """See the module's docstring. Pictures are floats in [0, 1], (N, 3, H, W)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Sizes."""

        size: int = 64
        """Pixels of a side; a multiple of the stride."""
        columns: int = 0
        """Pixels of the other side; 0 is a square."""
        quantizer: Literal["fsq", "vq"] = "fsq"
        levels: tuple[int, ...] = (8, 5, 5, 5)
        """Their product is the number of codes, of context and of later frames alike."""
        stride: Literal[8, 16, 32] = 16
        """Pixels of a side that one id of a later frame stands for; small pictures need 8."""
        width: int = 32
        seed: int = 0

    config: Config
    background: Tensor

    def __init__(self, config: Config) -> None:
        """All weights, from the seed; the background is grey until `learn_background`."""
        nn.Module.__init__(self)
        Configurable.__init__(self, config)
        height, breadth = config.size, config.columns or config.size
        self.grid, self.side = (height // 8, breadth // 8), (height // config.stride, breadth // config.stride)
        self.places, self.context_places = math.prod(self.side), math.prod(self.grid)
        width, dimensions = config.width, len(config.levels)
        self.register_buffer("background", torch.full((3, height, breadth), 0.5))
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.context_codes, self.frame_codes = (make_quantizer(config.quantizer, config.levels) for _ in range(2))
            self.codes = int(self.context_codes.codes)
            self.context_down = _Down(3, width, 1, dimensions)
            self.frame_down = _Down(6, width, (config.stride // 4).bit_length() - 1, dimensions)
            self.context_in, self.frame_in = (nn.Conv2d(dimensions, width * 2, 1) for _ in range(2))
            self.context_pixels, self.frame_pixels = _Pixels(width, 0), _Pixels(width, width)
            self.shown, self.attend = _Shown(width), _Attend(width * 2, self.context_places)

    def learn_background(self, frames: Tensor) -> None:
        """What most frames show at each pixel."""
        self.background.copy_(frames.median(0).values)

    def _context_vectors(self, context: Tensor) -> Tensor:
        found: Tensor = self.context_down(2.0 * (context - self.background))
        return found

    def _frame_vectors(self, frames: Tensor, context: Tensor) -> Tensor:
        seen = torch.cat([2.0 * (frames - context), 2.0 * (context - self.background)], 1)
        found: Tensor = self.frame_down(seen)
        return found

    def _rebuild_context(self, codes: Tensor) -> Tensor:
        return self.background + cast(Tensor, self.context_pixels(self.context_in(codes.permute(0, 3, 1, 2)), []))

    def _rebuild(self, codes: Tensor, context: Tensor) -> Tensor:
        shown = self.shown(2.0 * (context - self.background))
        if len(context) == 1:
            shown = [part.expand(len(codes), -1, -1, -1) for part in shown]
        grid = functional.interpolate(self.frame_in(codes.permute(0, 3, 1, 2)), size=self.grid)
        return context + cast(Tensor, self.frame_pixels(self.attend(grid, shown[0]), shown))

    def forward(self, context: Tensor, frames: Tensor) -> Coded:
        """Context frames and one later frame each, through ids and back."""
        context_codes, context_ids, first = self.context_codes(self._context_vectors(context))
        frame_codes, frame_ids, second = self.frame_codes(self._frame_vectors(frames, context))
        rebuilt, later = self._rebuild_context(context_codes), self._rebuild(frame_codes, context)
        return Coded(rebuilt, later, context_ids, frame_ids, first + second)

    @torch.inference_mode()
    def encode(self, frames: Tensor, context: Tensor | None = None) -> Film:
        """One film: (T, 3, H, W). Its first frame is the context unless another (3, H, W) is given."""
        first = frames[:1] if context is None else context[None]
        ids = self.context_codes(self._context_vectors(first))[1]
        later = self.frame_codes(self._frame_vectors(frames, first.expand(len(frames), -1, -1, -1)))[1]
        return Film(ids.flatten(), later.flatten(1))

    @torch.inference_mode()
    def decode(self, context: Tensor, frames: Tensor) -> Tensor:
        """Pictures of the ids of frames [T, N] in a film that began with a context (3, H, W): (T, 3, H, W)."""
        codes = self.frame_codes.look_up(frames.view(-1, *self.side))
        return self._rebuild(codes, context[None]).clamp(0.0, 1.0)

    @torch.inference_mode()
    def decode_context(self, context: Tensor) -> Tensor:
        """Pictures of the ids of frames by themselves [T, C]: the per-frame tokenizer."""
        codes = self.context_codes.look_up(context.view(-1, *self.grid))
        return self._rebuild_context(codes).clamp(0.0, 1.0)

    # --- with plain numbers -----------------------------------------------------------------------------------------

    def write(self, frames: Pictures, context: Pictures) -> tuple[list[int], list[list[int]]]:
        """Ids of a context frame (H, W, 3) and of frames (T, H, W, 3) that came after it."""
        film = self.encode(_floats(frames), _floats(context[None])[0])
        return film.context.tolist(), film.frames.tolist()

    def read(self, context: Pictures, ids: Sequence[Sequence[int]]) -> Pictures:
        """Frames (T, H, W, 3) of ids, in a film that began with a context frame (H, W, 3)."""
        pictures = self.decode(_floats(context[None])[0], torch.tensor(ids))
        found: Pictures = (255.0 * pictures).round().byte().permute(0, 2, 3, 1).numpy()
        return found

    # --- on disk ----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Safetensors and JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / WEIGHTS)
        (folder / CONFIG).write_text(json.dumps(dump(self.config)), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> FrameTokenizer:
        """What `save` wrote."""
        config = load(json.loads((folder / CONFIG).read_text("utf-8")))
        tokenizer = cls(config)
        tokenizer.load_state_dict(load_file(folder / WEIGHTS))
        return tokenizer.eval()
