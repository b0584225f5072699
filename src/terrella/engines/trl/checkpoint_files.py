"""The files of a checkpoint: which folders are complete, and how states are stored.

States become safetensors and JSON. `newest_complete` decides where a killed run continues.
    write_manifest(folder, step=40)
    assert newest_complete(folder.parent) == 40
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from terrella.core.errors import EngineError
from terrella.core.files import write_atomic

FORMAT = "terrella checkpoint 1"
PREFIX, MANIFEST, DIGESTS = "checkpoint-", "manifest.json", "digests-"
OPTIMIZER = "optimizer"

logger = logging.getLogger("terrella")


# --- folders --------------------------------------------------------------------------------------


def newest_complete(folder: Path) -> int:
    """The step of the newest complete checkpoint, or 0. Incomplete and damaged ones are removed."""
    complete = complete_steps(folder)
    for path in folder.glob(f"{PREFIX}*"):
        if path.name not in {f"{PREFIX}{step}" for step in complete}:
            remove_checkpoint(path)
    for step in sorted(complete, reverse=True):
        path = folder / f"{PREFIX}{step}"
        changed = changed_files(path)
        if not changed:
            return step
        logger.warning("removed: %s differs from its manifest in %s", path, ", ".join(changed))
        remove_checkpoint(path)
    return 0


def write_digests(folder: Path, process: int, files: Sequence[Path]) -> None:
    """Hash and flush the files that a process wrote, for the manifest."""
    digests = {path.name: _digest(path, sync=True) for path in files}
    write_atomic(folder / f"{DIGESTS}{process}.json", json.dumps(digests).encode())


def write_manifest(folder: Path, step: int) -> None:
    """Hash all files that their writers did not, flush them to disk, then write the manifest."""
    names: dict[str, str] = {}
    for path in folder.glob(f"{DIGESTS}*.json"):
        names.update(read_json(path))
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    for path in files:
        name = str(path.relative_to(folder))
        names[name] = names.get(name) or _digest(path, sync=True)
    text = json.dumps({"format": FORMAT, "step": step, "files": names}, indent=1)
    write_atomic(folder / MANIFEST, text.encode())


def remove_checkpoint(folder: Path) -> None:
    # The manifest first: a folder that is half removed must not look complete.
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder)


def complete_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that have a manifest, unordered."""
    names = [path.parent.name.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*/{MANIFEST}")]
    return [int(name) for name in names if name.isdecimal()]


def changed_files(folder: Path) -> list[str]:
    """Files that differ from what the manifest says of them."""
    listed = read_json(folder / MANIFEST)["files"]
    return [name for name, digest in listed.items() if _digest(folder / name) != digest]


def _digest(path: Path, *, sync: bool = False) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- states as tensors and JSON -------------------------------------------------------------------


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
    tensors = load_file(folder / f"{OPTIMIZER}.safetensors")
    rest = read_json(folder / f"{OPTIMIZER}.json")
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


def random_file(folder: str, process: int) -> Path:
    """The file in which a process saves its random states."""
    return Path(folder) / f"random-{process}.json"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file; the error for a value that JSON cannot hold names the file."""
    try:
        path.write_text(json.dumps(value), "utf-8")
    except TypeError as error:
        raise EngineError(path.name, f"cannot be written as JSON: {error}") from error


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))
