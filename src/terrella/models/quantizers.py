"""Quantizers: vectors to a finite set of codes, with straight-through gradients.

FSQ rounds each number to a few levels, so there is no codebook that can collapse; VQ finds the
nearest vector of a learned codebook. The vectors should be normalised over the data: otherwise,
where most of an image is background, FSQ collapses onto a few codes.
    codes, ids, loss = Fsq((8, 5, 5, 5))(vectors)      # (..., 4) -> (..., 4), (...), scalar
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Fsq(nn.Module):
    """Finite scalar quantization: an id is a mixed-radix number with one digit per dimension."""

    def __init__(self, levels: Sequence[int]) -> None:
        """The number of codes is the product of the levels."""
        super().__init__()
        self.dimensions = len(levels)
        self.codes = math.prod(levels)
        place_values = [math.prod(levels[:digit]) for digit in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("place_values", torch.tensor(place_values), persistent=False)
        self.levels: Tensor
        self.place_values: Tensor

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Quantized vectors (straight-through), ids, and a loss of 0."""
        half = (self.levels - 1) * (1 + 1e-3) / 2
        shift = torch.where(self.levels % 2 == 0, 0.5, 0.0)
        bounded = torch.tanh(vectors + torch.atanh(shift / half)) * half - shift
        rounded = bounded + (bounded.round() - bounded).detach()
        digits = (rounded.detach() + self.levels // 2).long()
        ids = (digits * self.place_values).sum(-1)
        return rounded / (self.levels // 2), ids, vectors.new_zeros(())

    def look_up(self, ids: Tensor) -> Tensor:
        """The quantized vectors of ids."""
        digits = ids[..., None] // self.place_values % self.levels
        return (digits - self.levels // 2) / (self.levels // 2)


class Vq(nn.Module):
    """Vector quantization with a learned codebook and a commitment loss.

    The codebook starts small and random; unused vectors are not reset.
    """

    def __init__(self, codes: int, dimensions: int, commitment: float = 0.25) -> None:
        super().__init__()
        self.codes = codes
        self.dimensions = dimensions
        self.commitment = commitment
        self.book = nn.Embedding(codes, dimensions)
        nn.init.uniform_(
            self.book.weight, -1.0 / math.sqrt(dimensions), 1.0 / math.sqrt(dimensions)
        )

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Quantized vectors (straight-through), ids, and codebook plus commitment loss."""
        flat = vectors.reshape(-1, self.dimensions)
        ids = torch.cdist(flat, self.book.weight).argmin(-1).view(vectors.shape[:-1])
        nearest = self.book(ids)
        book_loss = functional.mse_loss(nearest, vectors.detach())
        commitment_loss = functional.mse_loss(vectors, nearest.detach())
        loss = book_loss + self.commitment * commitment_loss
        return vectors + (nearest - vectors).detach(), ids, loss

    def look_up(self, ids: Tensor) -> Tensor:
        """The codebook vectors of ids."""
        vectors: Tensor = self.book(ids)
        return vectors


def make_quantizer(kind: str, levels: Sequence[int]) -> Any:
    """`fsq` with these levels, or `vq` with the same number of codes and dimensions."""
    return Fsq(levels) if kind == "fsq" else Vq(math.prod(levels), len(levels))
