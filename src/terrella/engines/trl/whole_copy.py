"""Whole weights for a sampler when the trainer's are sharded.

Under FSDP2 each process holds a part of every parameter, and a forward pass of one process needs all others: episodes
of unlike length would wait for each other for ever. So each process keeps a whole copy, refreshed before it samples;
models too large for that sample through vLLM.
    copied = WholeCopy(model); ...; copied.refresh(model); LocalSampler(copied.model)
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.distributed.tensor import DTensor


class WholeCopy:
    """An unsharded model with the trainer's weights."""

    def __init__(self, model: Any) -> None:
        """Copied before training libraries patch or shard the model: a copy of a patched one would call the first."""
        self.model = copy.deepcopy(model).requires_grad_(False).eval()

    def refresh(self, trained: Any) -> None:
        """Take over the trainer's weights; a collective when they are sharded, so every process calls it."""
        sources = dict(trained.named_parameters())
        with torch.no_grad():
            for name, target in self.model.named_parameters():
                source = sources[name]
                target.copy_(source.full_tensor() if isinstance(source, DTensor) else source)
