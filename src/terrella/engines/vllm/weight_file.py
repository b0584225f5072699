"""The file by which weights travel to a server that shares the trainer's GPUs.

It lies in shared memory (/dev/shm) or in a folder of the user, while the server loads it.
Its folder is locked meanwhile: what an ended process has left there is not, and can be removed.
    with weight_file(None, weights, "bfloat16") as path: load(path)
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError, StoreError
from terrella.core.files import locked

SETTING = "vllm.sync_folder"
MEMORY_FOLDER = Path("/dev/shm")
PREFIX = "terrella-weights-"
NAME = "weights.safetensors"
GB = 1e9


def usual_folder() -> Path:
    """Shared memory, or the folder for temporary files where a system has none."""
    return MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else Path(tempfile.gettempdir())


@contextlib.contextmanager
def weight_file(
    folder: Path | None, weights: Iterable[tuple[str, Any]], dtype: str
) -> Iterator[Path]:
    """Write all weights to a new file, which is removed at the end; None is the usual folder."""
    from safetensors.torch import save_file

    tensors = _on_host(weights, dtype)
    parent = folder or usual_folder()
    _check_room(parent, sum(each.nbytes for each in tensors.values()))
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent) as own,
        locked(Path(own), wait=True),
    ):
        path = Path(own) / NAME
        save_file(tensors, path)
        del tensors  # the file holds them
        yield path


def remove_stale(folder: Path | None) -> None:
    """Remove the files of processes that ended during a sync; refuse a folder that is missing."""
    parent = folder or usual_folder()
    if not parent.is_dir():
        raise ConfigError(SETTING, f"there is no folder {parent}", "make it, or name another one")
    for each in parent.glob(f"{PREFIX}*"):
        # Without a file it may be about to be locked.
        with contextlib.suppress(OSError, StoreError):  # another user's, or of a living process
            if (each / NAME).exists():
                with locked(each):
                    shutil.rmtree(each)


def _on_host(weights: Iterable[tuple[str, Any]], dtype: str) -> dict[str, Any]:
    """The weights, in the server's dtype if it has 16 bits: the server would cast anyway."""
    import torch

    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype)
    return {
        name: weight.to(device="cpu", dtype=half or weight.dtype).contiguous()
        for name, weight in weights
    }


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        remedy = f"set {SETTING} to a folder with more room that server and trainer both see"
        if folder == MEMORY_FOLDER:
            size = f"--shm-size={needed / GB + 1:.0f}g"
            remedy = f"start the container with {size} or more, or {remedy}"
        raise ConfigError(
            SETTING,
            f"a weight sync writes {needed / GB:.3g} GB, and {folder} has {free / GB:.3g} GB left",
            remedy,
        )
