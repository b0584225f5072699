"""Gives memory of this process's GPU back to the device, for a server that shares it.

torch keeps what its tensors leave; another process cannot use that. Nothing here imports torch: a
process without it holds nothing.
    free_cached_memory()
    sampler.load_weights(weights)  # wakes the server
"""

from __future__ import annotations

import gc
import sys


def free_cached_memory() -> None:
    """Give back what torch keeps of a GPU and no tensor uses; nothing where no GPU is used."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def free_memory() -> None:
    """Give back the memory of a training that is done, once nothing refers to it.

    Trainer, model and optimizer refer to each other: they stay until they are collected, and torch
    keeps their memory even then. A vLLM server on the same GPU would not start.
    """
    gc.collect()
    free_cached_memory()
