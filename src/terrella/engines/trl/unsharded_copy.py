"""An unsharded copy of the model for sampling when the trainer's weights are sharded.

Under FSDP2 each process holds a part of every parameter, and a forward pass needs all processes:
episodes of different lengths would wait for each other forever. So each process keeps a full copy
and refreshes it before it samples. Models too large for that are sampled with vLLM.
    unsharded = UnshardedCopy(model)
    unsharded.refresh(trained_model)
    sampler = LocalSampler(unsharded.model)
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.distributed.tensor import DTensor


class UnshardedCopy:
    """A full model with the trainer's weights."""

    def __init__(self, model: Any) -> None:
        """Call it before training libraries patch or shard the model.

        A copy of a patched model would call the original one.
        """
        self.model = copy.deepcopy(model).requires_grad_(False).eval()

    def refresh(self, trained: Any) -> None:
        """Copy the trainer's weights. All processes call it: sharded weights are gathered."""
        sources = dict(trained.named_parameters())
        with torch.no_grad():
            for name, target in self.model.named_parameters():
                source = sources[name]
                target.copy_(source.full_tensor() if isinstance(source, DTensor) else source)
