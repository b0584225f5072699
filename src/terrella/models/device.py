"""Where a model belongs: on this process's GPU, if there is one.

A model that is only sampled from goes to `default_device()`. A model that a launcher will shard
stays on the host until the trainer shards it, because a GPU need not hold all of it.
    model.to(default_device())
"""

from __future__ import annotations

import os

import torch
from accelerate.utils import parse_flag_from_env


def default_device() -> torch.device:
    """This process's GPU (the launcher sets LOCAL_RANK), or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def loading_device() -> torch.device:
    """Where `load_model` puts a model unless it is told: the host if the model will be sharded."""
    return torch.device("cpu") if sharded() else default_device()


def sharded() -> bool:
    """Whether accelerate will shard the model (FSDP2). Works before there is a trainer."""
    return bool(parse_flag_from_env("ACCELERATE_USE_FSDP"))
