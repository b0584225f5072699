"""Published tokenizers of RLVR-World, read from their own folders and kept in ours.

`CNNFSQModel256` encodes every frame by itself (320 ids at 256 x 320), `CompressiveVQModelFSQ` a
context frame (1,280) and what changed since (80). The weights are read from safetensors; a tensor
that is missing, or that we do not know, is refused by name. The published files were not available
here: the layout follows the published code, and is tested on a small checkpoint of that layout.
    tokenizer = read_published(Path("rt1-frame-tokenizer"), rows=256, columns=320)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from terrella.core.errors import ConfigError, StoreError
from terrella.core.untrusted import read_json, reading
from terrella.models.published_blocks import Decoder, Encoder
from terrella.models.quantizers import Fsq
from terrella.models.tokenizer_base import BaseTokenizer, VideoIds

CONFIG, WEIGHTS = "config.json", "diffusion_pytorch_model.safetensors"
PER_FRAME, COMPRESSIVE = "CNNFSQModel256", "CompressiveVQModelFSQ"
LEVELS: Mapping[int, tuple[int, ...]] = {12: (7, 5, 5, 5, 5)}
"""FSQ levels by the number of bits that a published config may give instead."""
CROSS = "cond_encoder.cross_att_blocks.{}.q_pos_emb"


class PublishedTokenizer(BaseTokenizer):
    """A published network behind the interface of our own tokenizers; it is not trained here."""

    def __init__(self, settings: Mapping[str, Any], rows: int, columns: int) -> None:
        """`settings` is the published config, with `cells` added: see `read_published`."""
        super().__init__()
        self.settings, self.rows, self.columns = dict(settings), rows, columns
        with reading(CONFIG):
            self._build(settings)

    def _build(self, settings: Mapping[str, Any]) -> None:
        widths = [int(width) for width in settings["block_out_channels"]]
        levels = settings["fsq_levels"]
        levels = LEVELS[levels] if isinstance(levels, int) else tuple(map(int, levels))
        latent = int(settings["latent_channels"])
        shape = (
            widths,
            int(settings["layers_per_block"]),
            int(settings["norm_num_groups"]),
            latent,
        )
        self.compressive = settings["_class_name"] == COMPRESSIVE
        halvings = 2 ** (len(widths) - 1)
        self.grid = (self.rows // halvings, self.columns // halvings)
        self.patch = int(settings.get("patch_size", 4)) if self.compressive else 1
        self.side = (self.grid[0] // self.patch, self.grid[1] // self.patch)
        self.tokens_per_frame = math.prod(self.side)
        self.tokens_per_context = math.prod(self.grid) if self.compressive else 0
        self.quantizer = Fsq(levels)
        self.codes = self.quantizer.codes
        self.register_buffer("background", torch.zeros(1), persistent=False)
        middle = bool(settings.get("mid_block_add_attention", not self.compressive))
        self.encoder = Encoder(*shape, attends=middle or not self.compressive)
        self.decoder = Decoder(*shape, attends=middle or not self.compressive)
        if not self.compressive:
            self.quant_linear: nn.Module = nn.Conv2d(latent, len(levels), 1)
            self.post_quant_linear: nn.Module = nn.Conv2d(len(levels), latent, 1)
            return
        cells = [int(count) for count in settings["cells"]]
        self.cond_encoder = Encoder(*shape, attends=True, cells=cells)
        self.cond_decoder = Decoder(*shape, attends=True, cells=settings["decoder_cells"])
        self.quant_conv = nn.Conv2d(latent, len(levels), 1)
        self.post_quant_conv = nn.Conv2d(len(levels), latent, 1)
        self.quant_linear = nn.Linear(latent * self.patch**2, len(levels))
        self.post_quant_linear = nn.Linear(len(levels), latent * self.patch**2)

    # --- frames to ids ----------------------------------------------------------------------------

    @torch.inference_mode()
    def encode(self, frames: Tensor, context: Tensor | None = None) -> VideoIds:
        """Encode frames (T, 3, H, W); the first is the context unless another is given."""
        if not self.compressive:
            return VideoIds(torch.zeros(0).long(), self._ids(self._frame_vectors(frames)))
        first = frames[:1] if context is None else context[None]
        *features, latent = self.encoder.features(first)
        shown = [each.expand(len(frames), -1, -1, -1) for each in features]
        changed = self.cond_encoder.features(frames, shown)[-1]
        context_ids = self._ids(self.quant_conv(latent).permute(0, 2, 3, 1))
        return VideoIds(context_ids[0], self._ids(self.quant_linear(self._patches(changed))))

    def _frame_vectors(self, frames: Tensor) -> Tensor:
        vectors: Tensor = self.quant_linear(self.encoder.features(frames)[-1])
        return vectors.permute(0, 2, 3, 1)

    def _ids(self, vectors: Tensor) -> Tensor:
        ids: Tensor = self.quantizer(vectors)[1]
        return ids.flatten(1)

    def _patches(self, latent: Tensor) -> Tensor:
        """(N, C, H, W) to (N, H/p, W/p, p * p * C)."""
        n, c, _, _ = latent.shape
        (h, w), p = self.side, self.patch
        return latent.view(n, c, h, p, w, p).permute(0, 2, 4, 3, 5, 1).reshape(n, h, w, -1)

    # --- ids to frames ----------------------------------------------------------------------------

    @torch.inference_mode()
    def decode(self, context: Tensor, frames: Tensor) -> Tensor:
        """Decode ids [T, N]; a compressive decoder sees the context (3, H, W) through its ids."""
        codes = self.quantizer.look_up(frames.view(-1, *self.side))
        if not self.compressive:
            latent = self.post_quant_linear(codes.permute(0, 3, 1, 2))
            return self.decoder.features(latent)[-1].clamp(0.0, 1.0)
        *_, shown = self.encoder.features(context[None])
        ids = self._ids(self.quant_conv(shown).permute(0, 2, 3, 1))
        return self.decode_upon(ids, frames)

    @torch.inference_mode()
    def decode_upon(self, context_ids: Tensor, frames: Tensor) -> Tensor:
        """Decode ids [T, N] of frames upon the ids [1, C] of a context frame."""
        codes = self.quantizer.look_up(context_ids.view(1, *self.grid)).permute(0, 3, 1, 2)
        *features, _ = self.decoder.features(self.post_quant_conv(codes))
        changed = self.post_quant_linear(self.quantizer.look_up(frames.view(-1, *self.side)))
        n, (h, w), p = len(frames), self.side, self.patch
        latent = (
            changed.view(n, h, w, p, p, -1).permute(0, 5, 1, 3, 2, 4).reshape(n, -1, *self.grid)
        )
        shown = [each.expand(n, -1, -1, -1) for each in features]
        return self.cond_decoder.features(latent, shown)[-1].clamp(0.0, 1.0)

    def description(self) -> dict[str, Any]:
        return {"published": self.settings, "rows": self.rows, "columns": self.columns}


def read_published(folder: Path, *, rows: int, columns: int) -> PublishedTokenizer:
    """Load a published folder for frames of this size."""
    settings = read_json(folder / CONFIG)
    kind = settings.get("_class_name") if isinstance(settings, dict) else None
    if kind not in (PER_FRAME, COMPRESSIVE):
        raise ConfigError(
            str(folder / CONFIG),
            f"_class_name is {json.dumps(kind)[:60]}",
            f"tokenizers of the classes {PER_FRAME} and {COMPRESSIVE} can be read",
        )
    weights = load_file(folder / WEIGHTS)
    if kind == COMPRESSIVE:
        # How often frames attend to their context is not in the config: the tensors say it.
        cells = [len(weights[name]) for name in _numbered(weights, CROSS)]
        decoder = CROSS.replace("encoder", "decoder")
        decoder_cells = [len(weights[name]) for name in _numbered(weights, decoder)]
        settings = {**settings, "cells": cells, "decoder_cells": decoder_cells}
    tokenizer = PublishedTokenizer(settings, rows, columns)
    load_named(tokenizer, weights, str(folder / WEIGHTS))
    return tokenizer.eval()


def _numbered(weights: Mapping[str, Tensor], pattern: str) -> list[str]:
    names: list[str] = []
    while pattern.format(len(names)) in weights:
        names.append(pattern.format(len(names)))
    return names


def load_named(module: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load tensors by name; names and shapes must be exactly those of the module."""
    own = module.state_dict()
    wrong = [f"{name} is missing" for name in own if name not in weights]
    wrong += [f"{name} is not known" for name in weights if name not in own]
    wrong += [
        f"{name} is {tuple(weights[name].shape)}, not {tuple(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise StoreError(
            where, "; ".join(wrong[:5]) + more, "is this a tokenizer of another version?"
        )
    module.load_state_dict(dict(weights))
