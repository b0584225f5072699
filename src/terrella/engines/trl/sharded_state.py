"""Checkpoints of sharded training (FSDP2): every process writes and reads its own shards.

Nothing is gathered, so no host needs memory for a whole optimizer. The files are safetensors with
the local part of each tensor. (The file format of `torch.distributed.checkpoint` has a pickled
index.) A checkpoint therefore belongs to its number of processes, as its random states do.
    save_shards(folder, 0, model, optimizer)
    load_weights(folder, 0, 2, model)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from terrella.core.errors import EngineError
from terrella.core.files import read_json
from terrella.engines.checkpoints import listed_file, listed_names, write_digests
from terrella.engines.trl.checkpoint_files import (
    pack_optimizer,
    unpack_optimizer,
    write_json,
)

WEIGHTS, OPTIMIZER = "weights", "optimizer"


def save_shards(folder: Path, process: int, model: Any, optimizer: Any) -> None:
    """Write this process's part of the trained weights and of the optimizer's state."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = _file(folder, WEIGHTS, process)
    save_file(_trained_parts(model), weights)
    state = optimizer.state_dict()
    local = {key: _local_parts(values) for key, values in state["state"].items()}
    tensors, rest = pack_optimizer({**state, "state": local})
    moments = _file(folder, OPTIMIZER, process)
    save_file(tensors, moments)
    write_json(moments.with_suffix(".json"), rest)
    # Each process hashes what it wrote: one process would have to read all of it.
    write_digests(folder, process, [weights, moments, moments.with_suffix(".json")])


@torch.no_grad()
def load_weights(folder: Path, process: int, processes: int, model: Any) -> None:
    """Load this process's part of the weights into a sharded model."""
    written = sum(_is_shard(name) for name in listed_names(folder))
    if written != processes:
        raise EngineError(
            str(folder),
            f"was written by {written} processes, and this run has {processes}",
            "resume with as many processes as before",
        )
    parts = load_file(listed_file(folder, _file(folder, WEIGHTS, process).name))
    for name, part in _trained_parts(model).items():
        part.copy_(parts[name])


@torch.no_grad()
def load_optimizer(folder: Path, process: int, optimizer: Any) -> None:
    """Load this process's part of the optimizer's state."""
    path = listed_file(folder, _file(folder, OPTIMIZER, process).name)
    rest = read_json(listed_file(folder, path.with_suffix(".json").name))
    state = unpack_optimizer(load_file(path), rest, optimizer.param_groups)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for index, values in state["state"].items():
        for name, part in values.items():
            if isinstance(part, Tensor) and part.ndim:  # the count of steps is whole everywhere
                values[name] = _as_shard(part, weights[int(index)])
    optimizer.load_state_dict(state)


def _trained_parts(model: Any) -> dict[str, Tensor]:
    """The local part of each trained parameter; it shares memory with the parameter."""
    return {
        name: _local(weight.detach())
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def _local_parts(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _local(value) if isinstance(value, Tensor) else value
        for name, value in values.items()
    }


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _as_shard(part: Tensor, weight: Tensor) -> Tensor:
    """A tensor that is sharded like the weight, with this local part."""
    whole = torch.zeros_like(weight)
    _local(whole).copy_(part)
    return whole


def _is_shard(name: str) -> bool:
    return name.startswith(f"{WEIGHTS}-") and name.endswith(".safetensors")


def _file(folder: Path, name: str, process: int) -> Path:
    return folder / f"{name}-{process}.safetensors"
