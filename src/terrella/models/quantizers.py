"""Quantizers: real vectors to one of so many codes, with gradients straight through.

FSQ rounds each number to a few levels (no codebook to collapse); VQ looks for the nearest vector of a learned book.
Vectors should come normalised over the data: where most of a picture is background, FSQ else falls onto a few codes.
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
    """Finite scalar quantization: a mixed-radix number, one digit per dimension."""

    def __init__(self, levels: Sequence[int]) -> None:
        """The number of codes is the product of the levels."""
        super().__init__()
        self.dimensions, self.codes = len(levels), math.prod(levels)
        places = [math.prod(levels[:place]) for place in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("places", torch.tensor(places), persistent=False)
        self.levels: Tensor
        self.places: Tensor

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Quantized vectors (straight through), ids, and no loss of its own."""
        half = (self.levels - 1) * (1 + 1e-3) / 2
        shift = torch.where(self.levels % 2 == 0, 0.5, 0.0)
        bounded = torch.tanh(vectors + torch.atanh(shift / half)) * half - shift
        rounded = bounded + (bounded.round() - bounded).detach()
        digits = (rounded.detach() + self.levels // 2).long()
        return rounded / (self.levels // 2), (digits * self.places).sum(-1), vectors.new_zeros(())

    def look_up(self, ids: Tensor) -> Tensor:
        """The quantized vectors of ids."""
        digits = ids[..., None] // self.places % self.levels
        return (digits - self.levels // 2) / (self.levels // 2)


class Vq(nn.Module):
    """The nearest vector of a learned book, with a commitment loss."""

    def __init__(self, codes: int, dimensions: int, commitment: float = 0.25) -> None:
        """The book starts small and random; unused vectors stay where they are."""
        super().__init__()
        self.codes, self.dimensions, self.commitment = codes, dimensions, commitment
        self.book = nn.Embedding(codes, dimensions)
        nn.init.uniform_(self.book.weight, -1.0 / math.sqrt(dimensions), 1.0 / math.sqrt(dimensions))

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Quantized vectors (straight through), ids, and the loss that pulls vectors and book together."""
        flat = vectors.reshape(-1, self.dimensions)
        ids = torch.cdist(flat, self.book.weight).argmin(-1).view(vectors.shape[:-1])
        chosen = self.book(ids)
        loss = functional.mse_loss(chosen, vectors.detach()) + self.commitment * functional.mse_loss(
            vectors, chosen.detach()
        )
        return vectors + (chosen - vectors).detach(), ids, loss

    def look_up(self, ids: Tensor) -> Tensor:
        """The vectors of ids."""
        found: Tensor = self.book(ids)
        return found


def make_quantizer(kind: str, levels: Sequence[int]) -> Any:
    """`fsq` with these levels, or `vq` with as many codes and dimensions."""
    return Fsq(levels) if kind == "fsq" else Vq(math.prod(levels), len(levels))
