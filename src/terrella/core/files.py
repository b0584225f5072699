"""Files that are whole or absent, and folders held by one writer.

with locked(folder): write_json(folder / "spec.json", {"seed": 0})
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from terrella.core import untrusted
from terrella.core.errors import StoreError

SCRATCH = ".tmp"


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder for writing; it is created if it does not exist.

    The lock ends with the process and leaves no file behind. A folder that another process holds is
    an error, unless `wait` is set: that is for folders which several jobs share.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise StoreError(
                str(folder),
                "another process is writing here",
                "wait until it has finished, or choose another folder",
            ) from error
        yield
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file that is complete or absent, even if the machine loses power."""
    scratch = path.with_name(path.name + SCRATCH)
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # A full disk does not say which file it had no room for.
        error.filename = error.filename or str(path)
        raise
    scratch.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # makes the new name durable, not only the bytes
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, *, sort_keys: bool = False) -> None:
    """Write JSON that a person can read; keys keep their order unless they are sorted."""
    text = json.dumps(value, indent=1, sort_keys=sort_keys, allow_nan=False)
    write_atomic(path, (text + "\n").encode())


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line."""
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def read_json(path: Path) -> Any:
    """Read a JSON file; a damaged one is an error that names it."""
    return untrusted.read_json(path, "this folder is damaged: start a new one")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read what `write_json_lines` wrote; a metric may be NaN."""
    remedy = "this folder is damaged: start a new one"
    return list(untrusted.read_json_lines(path, remedy, finite=False))


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder such that the target is complete or absent; replaces an older copy."""
    fresh = target.with_name(target.name + SCRATCH)
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(source, fresh)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
