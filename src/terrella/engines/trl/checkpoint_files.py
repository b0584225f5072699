"""The states in a checkpoint as safetensors and JSON: optimizers and random generators.

`engines/checkpoints.py` decides which checkpoints are complete.
    save_optimizer(folder, optimizer)
    load_optimizer(folder, optimizer)
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from terrella.core.errors import EngineError
from terrella.core.files import read_json
from terrella.engines.checkpoints import listed_file

OPTIMIZER = "optimizer"


def pack_optimizer(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split an optimizer's state into tensors, named `parameter/name`, and JSON values."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for key, values in state["state"].items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else rest)[f"{key}/{name}"] = value
    return plain_tensors(tensors), {"values": rest, "groups": state["param_groups"]}


def unpack_optimizer(
    tensors: Mapping[str, Tensor], rest: Mapping[str, Any], groups: list[dict[str, Any]]
) -> dict[str, Any]:
    """Undo `pack_optimizer`.

    `groups` are the live optimizer's own; they show which values were tuples before JSON.
    """
    state: dict[int | str, dict[str, Any]] = {}
    for path, value in {**tensors, **rest["values"]}.items():
        key, _, name = path.rpartition("/")
        state.setdefault(int(key) if key.isdecimal() else key, {})[name] = value
    restored = [
        {
            key: tuple(value) if isinstance(own.get(key), tuple) else value
            for key, value in group.items()
        }
        for group, own in zip(rest["groups"], groups, strict=True)
    ]
    return {"state": state, "param_groups": restored}


def save_optimizer(folder: Path, optimizer: Any) -> None:
    """Write the state of an optimizer that is not sharded."""
    tensors, rest = pack_optimizer(optimizer.state_dict())
    save_file(tensors, folder / f"{OPTIMIZER}.safetensors")
    write_json(folder / f"{OPTIMIZER}.json", rest)


def load_optimizer(folder: Path, optimizer: Any) -> None:
    """Undo `save_optimizer`."""
    tensors = load_file(listed_file(folder, f"{OPTIMIZER}.safetensors"))
    rest = read_json(listed_file(folder, f"{OPTIMIZER}.json"))
    optimizer.load_state_dict(unpack_optimizer(tensors, rest, optimizer.param_groups))


def random_states() -> dict[str, Any]:
    """The states of all global random generators of this process, as JSON values."""
    kind, keys, *position = np.random.get_state()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {
        "python": random.getstate(),
        "numpy": [kind, np.asarray(keys).tolist(), *position],
        "torch": _hex(torch.get_rng_state()),
        "cuda": None if cuda is None else _hex(cuda),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Undo `random_states`."""
    version, keys, gauss = states["python"]
    random.setstate((version, tuple(keys), gauss))
    kind, numbers, *position = states["numpy"]
    np.random.set_state((kind, np.array(numbers, dtype=np.uint32), *position))
    torch.set_rng_state(_from_hex(states["torch"]))
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_from_hex(states["cuda"]))


def _hex(state: Tensor) -> str:
    return bytes(state.tolist()).hex()


def _from_hex(text: str) -> Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


def plain_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors needs them: on the CPU and contiguous."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def random_file(process: int) -> str:
    """The file in which a process saves its random states."""
    return f"random-{process}.json"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file; the error for a value that JSON cannot hold names the file."""
    try:
        path.write_text(json.dumps(value), "utf-8")
    except TypeError as error:
        raise EngineError(path.name, f"cannot be written as JSON: {error}") from error
