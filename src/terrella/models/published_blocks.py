"""The networks of the published iVideoGPT and RLVR-World tokenizers, with their tensor names.

Encoder and decoder are those of diffusers' VAE (residual blocks, one attention in the middle), with
cross-attention to a context frame in the conditional ones. Names of submodules are the names in the
published files. Written from their description; nothing is imported from their packages.
    features = Encoder((64, 128), layers=2, groups=32, latent=64, attends=True).features(images)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-6
HEADS = 4
"""Heads of the cross-attention to the context frame."""


class Resnet(nn.Module):
    """`resnets.N`: two normalised convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels_in, eps=EPS)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, channels_out, eps=EPS)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        if channels_in != channels_out:
            self.conv_shortcut = nn.Conv2d(channels_in, channels_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(functional.silu(self.norm1(x)))
        out = self.conv2(functional.silu(self.norm2(out)))
        return cast(Tensor, (self.conv_shortcut(x) if hasattr(self, "conv_shortcut") else x) + out)


class Attention(nn.Module):
    """`attentions.0`: one head over all cells of a grid."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels, eps=EPS)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        cells = self.group_norm(x).flatten(2).mT
        q, k, v = (each(cells)[:, None] for each in (self.to_q, self.to_k, self.to_v))
        seen = functional.scaled_dot_product_attention(q, k, v)[:, 0]
        return x + cast(Tensor, self.to_out[0](seen)).mT.reshape(x.shape)


class Resampler(nn.Module):
    """`downsamplers.0` or `upsamplers.0`: to half or twice the size."""

    def __init__(self, channels: int, *, up: bool) -> None:
        super().__init__()
        self.up = up
        self.conv = nn.Conv2d(channels, channels, 3, 1 if up else 2, padding=1 if up else 0)

    def forward(self, x: Tensor) -> Tensor:
        if self.up:
            return cast(Tensor, self.conv(functional.interpolate(x, scale_factor=2.0)))
        return cast(Tensor, self.conv(functional.pad(x, (0, 1, 0, 1))))


class Block(nn.Module):
    """`down_blocks.N` or `up_blocks.N`."""

    def __init__(
        self, channels_in: int, channels_out: int, layers: int, groups: int, *, up: bool, last: bool
    ) -> None:
        super().__init__()
        widths = [channels_in, *[channels_out] * layers]
        pairs = itertools.pairwise(widths)
        self.resnets = nn.ModuleList([Resnet(a, b, groups) for a, b in pairs])
        if not last:
            name = "upsamplers" if up else "downsamplers"
            self.add_module(name, nn.ModuleList([Resampler(channels_out, up=up)]))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():
            for step in cast(nn.ModuleList, part):
                x = step(x)
        return x


class Middle(nn.Module):
    """`mid_block`."""

    def __init__(self, channels: int, groups: int, *, attends: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([Resnet(channels, channels, groups) for _ in range(2)])
        if attends:
            self.attentions = nn.ModuleList([Attention(channels, groups)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.resnets[0](x)
        if hasattr(self, "attentions"):
            x = self.attentions[0](x)
        return cast(Tensor, self.resnets[1](x))


class CrossAttention(nn.Module):
    """`cross_att_blocks.N`: from the cells of a frame to those of the context frame."""

    def __init__(self, channels: int, cells: int) -> None:
        super().__init__()
        self.att = nn.MultiheadAttention(channels, HEADS, batch_first=True)
        self.kv_norm = nn.GroupNorm(32, channels)
        self.q_norm = nn.GroupNorm(32, channels)
        self.kv_pos_emb, self.q_pos_emb = (
            nn.Parameter(self.att.in_proj_weight.new_zeros(cells, channels)) for _ in range(2)
        )

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q = self.q_norm(x).flatten(2).mT + self.q_pos_emb
        kv = self.kv_norm(context).flatten(2).mT + self.kv_pos_emb
        seen, _ = self.att(q, kv, kv, need_weights=False)
        return functional.silu(x + seen.mT.reshape(x.shape))


class Encoder(nn.Module):
    """Images to a grid of vectors. `cells` has the cells of each cross-attention, coarsest last."""

    def __init__(
        self,
        widths: Sequence[int],
        layers: int,
        groups: int,
        latent: int,
        *,
        attends: bool,
        cells: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(3, widths[0], 3, padding=1)
        pairs = list(zip([widths[0], *widths], widths, strict=False))
        last = len(widths) - 1
        self.down_blocks = nn.ModuleList(
            [
                Block(a, b, layers, groups, up=False, last=number == last)
                for number, (a, b) in enumerate(pairs)
            ]
        )
        self.mid_block = Middle(widths[-1], groups, attends=attends)
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], eps=EPS)
        self.conv_out = nn.Conv2d(widths[-1], latent, 3, padding=1)
        if cells:
            attended = zip(widths[len(widths) - len(cells) :], cells, strict=True)
            self.cross_att_blocks = nn.ModuleList([CrossAttention(*each) for each in attended])

    def features(self, x: Tensor, context: Sequence[Tensor] = ()) -> list[Tensor]:
        """What each down block makes; the last entry is the output."""
        x, made = self.conv_in(x), []
        crossed = list(getattr(self, "cross_att_blocks", ()))
        first = len(self.down_blocks) - len(crossed)
        for number, block in enumerate(self.down_blocks):
            x = block(x)
            if number >= first and crossed:
                x = crossed[number - first](x, context[number])
            made.append(x)
        x = self.conv_norm_out(self.mid_block(x))
        return [*made, self.conv_out(functional.silu(x))]


class Decoder(nn.Module):
    """A grid of vectors to images. `cells` as in the encoder, but coarsest first."""

    def __init__(
        self,
        widths: Sequence[int],
        layers: int,
        groups: int,
        latent: int,
        *,
        attends: bool,
        cells: Sequence[int] = (),
    ) -> None:
        super().__init__()
        turned = list(reversed(widths))
        self.conv_in = nn.Conv2d(latent, turned[0], 3, padding=1)
        self.mid_block = Middle(turned[0], groups, attends=attends)
        pairs = list(zip([turned[0], *turned], turned, strict=False))
        last = len(widths) - 1
        self.up_blocks = nn.ModuleList(
            [
                Block(a, b, layers + 1, groups, up=True, last=number == last)
                for number, (a, b) in enumerate(pairs)
            ]
        )
        self.conv_norm_out = nn.GroupNorm(groups, turned[-1], eps=EPS)
        self.conv_out = nn.Conv2d(turned[-1], 3, 3, padding=1)
        if cells:
            attended = zip([turned[0], *turned][: len(cells)], cells, strict=True)
            self.cross_att_blocks = nn.ModuleList([CrossAttention(*each) for each in attended])

    def features(self, x: Tensor, context: Sequence[Tensor] = ()) -> list[Tensor]:
        """What the middle and each up block make; the last entry is the image."""
        crossed = list(getattr(self, "cross_att_blocks", ()))
        x, made = self.conv_in(x), []
        for number, block in enumerate([self.mid_block, *self.up_blocks]):
            x = block(x)
            if number < len(crossed):
                x = crossed[number](x, context[number])
            made.append(x)
        return [*made, self.conv_out(functional.silu(self.conv_norm_out(x)))]
