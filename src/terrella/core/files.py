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
from typing import IO, Any

from terrella.core import untrusted
from terrella.core.errors import PathError, StoreError

SCRATCH = ".tmp"


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder for writing; it is created if it does not exist.

    The lock ends with the process and leaves no file behind. A folder that another process holds is
    an error, unless `wait` is set: that is for folders which several jobs share.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # parents are made: only /proc and the like end here
        raise PathError(
            str(folder), "no folder can be made here", "choose another folder with --out"
        ) from error
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
    with _naming(path):
        scratch.unlink(missing_ok=True)
        # "x": a link that somebody left under this name is not followed.
        with scratch.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    sync_folder(path.parent)


def subfolder(folder: Path, name: str) -> Path:
    """A folder of ours inside another. Links in it are refused: writing would follow them."""
    inner = folder / name
    _refuse_link(inner)
    refuse_links(inner)
    inner.mkdir(parents=True, exist_ok=True)
    return inner


def refuse_links(folder: Path) -> None:
    """Refuse a folder with links in it, at any depth. The folder itself may be one."""
    for place, folders, names in os.walk(folder, onerror=_unlisted):
        for name in (*folders, *names):
            _refuse_link(Path(place) / name)


def _unlisted(error: OSError) -> None:
    """A folder that cannot be listed may hide links; one that is gone holds none."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise StoreError(
            str(path),
            f"is a link to {path.readlink()}, and what is written here would go there",
            "put a copy of what you need in its place, remove it, or choose another folder",
        )


def open_unlinked(path: Path, mode: str) -> IO[Any]:
    """Open a file of ours for writing; a link under its name is refused."""
    _refuse_link(path)

    def opener(name: str, flags: int) -> int:
        # Once more, in one step with opening: a link may have been made since.
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)

    encoding = None if "b" in mode else "utf-8"
    buffering = -1 if "b" in mode else 1  # of text: line by line
    return open(path, mode, buffering, encoding, opener=opener)


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


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a new file, a rename, a removal."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Make what was written to a file durable, whoever wrote it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with _naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A full disk does not say which file it had no room for."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def scratch_folder(folder: Path) -> Path:
    """Where the next version of a folder is written. What a killed run left there is removed."""
    fresh = folder.with_name(folder.name + SCRATCH)
    remove_folder(fresh)
    return fresh


def remove_folder(folder: Path) -> None:
    """Remove a folder, if there is one. A link is refused: writing there would follow it."""
    _refuse_link(folder)
    if folder.exists():
        shutil.rmtree(folder)


def replace_folder(fresh: Path, target: Path) -> None:
    """Put a complete folder in the place of an older one."""
    remove_folder(target)
    fresh.rename(target)
    sync_folder(target.parent)


def folder_stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of the files in a folder: changed files change it, without reading."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(
        (path.relative_to(folder).as_posix(), path.stat().st_mtime_ns, path.stat().st_size)
        for path in files
    )
