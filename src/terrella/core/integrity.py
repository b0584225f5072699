"""Hashes of what is written, checked when it is first read: no bit flips in silence.

A sealed JSON file carries the SHA-256 of its own content. A listing is a sealed file that names the
files of a folder with their hashes, so a folder is what was written or is refused by name. A hashed
file has its hash beside it. A file is hashed once per process, and again when it has changed.
    write_sealed(folder / "manifest.json", {"seed": 0}); read_sealed(folder / "manifest.json")
    write_listing(folder); check_folder(folder)
    write_hashed(folder / "net.safetensors", data); read_hashed(folder / "net.safetensors")
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from terrella.core.errors import StoreError
from terrella.core.files import (
    replace_folder,
    scratch_folder,
    sync_file,
    sync_folder,
    write_atomic,
    write_json,
)
from terrella.core.types import canonical_json
from terrella.core.untrusted import parse_json

SEAL = "sha256"
"""The key of a sealed file under which its hash is."""
LISTING, LISTING_FORMAT = "files.json", "terrella-files"
HASH_SUFFIX = ".sha256"
RESTORE = "restore it from a copy, or run again in a new folder"
MAKE_AGAIN = "delete it and run the same command again: it is made again"

SETTLED_NANOSECONDS = 100_000_000
"""A file younger than this may change again without a new time stamp: its hash is not kept."""

_Fingerprint = tuple[int, int, int]
_known: dict[Path, tuple[_Fingerprint, str]] = {}


# --- files ----------------------------------------------------------------------------------------


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file; it is read again only if it has changed since the last call."""
    where = path.absolute()
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        fingerprint = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known = _known.get(where)
        if known is not None and known[0] == fingerprint:
            return known[1]
        digest = hashlib.file_digest(file, SEAL).hexdigest()
    if time.time_ns() - stat.st_mtime_ns > SETTLED_NANOSECONDS:
        _known[where] = (fingerprint, digest)
    return digest


def check_file(path: Path, sha256: str, remedy: str = RESTORE) -> None:
    """Refuse a file whose content has another hash."""
    if not path.is_file():
        raise StoreError(str(path), "is missing", remedy)
    if file_sha256(path) != sha256:
        raise StoreError(str(path), "is damaged: it differs from its hash", remedy)


def write_hashed(path: Path, data: bytes) -> None:
    """Write a file with its hash beside it; the hash is durable before the file appears."""
    digest = hashlib.sha256(data).hexdigest()
    write_atomic(path.with_name(path.name + HASH_SUFFIX), f"{digest}\n".encode())
    write_atomic(path, data)


def read_hashed(path: Path, remedy: str = RESTORE) -> bytes:
    """Read what `write_hashed` wrote; a damaged file is refused by name."""
    beside = path.with_name(path.name + HASH_SUFFIX)
    if not path.is_file() or not beside.is_file():
        missing = f"has no hash beside it ({beside.name})" if path.is_file() else "is missing"
        raise StoreError(str(path), missing, remedy)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != beside.read_bytes().decode("ascii", "replace").strip():
        raise StoreError(str(path), "is damaged: it differs from its hash", remedy)
    return data


# --- sealed JSON ----------------------------------------------------------------------------------


def content_sha256(content: Any) -> str:
    """The SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(canonical_json(content).encode("utf-8", "surrogatepass")).hexdigest()


def write_sealed(path: Path, content: Mapping[str, Any], *, sort_keys: bool = False) -> None:
    """Write a JSON object with the hash of its content."""
    # As it will be read back: keys are texts, tuples are lists.
    plain = json.loads(json.dumps(content, allow_nan=False))
    write_json(path, {**plain, SEAL: content_sha256(plain)}, sort_keys=sort_keys)


def read_sealed(path: Path, remedy: str = RESTORE) -> Any:
    """The content of a sealed file, without its hash; a damaged one is refused by name."""
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise StoreError(str(path), "is missing", remedy) from error
    content, damage = _unseal(text)
    if damage:
        raise StoreError(str(path), damage, remedy)
    return content


def _unseal(text: bytes) -> tuple[dict[str, Any], str]:
    """The content, and what is wrong with it."""
    try:
        content = parse_json(text, "")
    except StoreError as error:
        return {}, error.what
    seal = content.pop(SEAL, None) if isinstance(content, dict) else None
    digest = content_sha256(content)
    if seal is None:
        return {}, "has no hash of its content: it is damaged, or an earlier terrella wrote it"
    if seal != digest:
        return {}, "is damaged: its content differs from its hash"
    return content, ""


def damaged_files(folder: Path) -> list[str]:
    """Names of the sealed and hashed files in a folder that differ from their hashes."""
    damaged = []
    for path in sorted(folder.iterdir()):
        try:
            if path.suffix == ".json":
                read_sealed(path)
            elif path.with_name(path.name + HASH_SUFFIX).is_file():
                read_hashed(path)
        except StoreError:
            damaged.append(path.name)
    return damaged


# --- listings of folders --------------------------------------------------------------------------


def write_listing(
    folder: Path,
    name: str = LISTING,
    *,
    known: Mapping[str, str] | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """List all files of a folder with their hashes; every file is durable before the listing.

    `known` are hashes of files that their writers have hashed and flushed.
    """
    hashes = dict(known or {})
    for path in _files(folder):
        relative = path.relative_to(folder).as_posix()
        if relative != name and relative not in hashes:
            hashes[relative] = flushed_sha256(path)
    content = {"format": LISTING_FORMAT, **(about or {}), "files": dict(sorted(hashes.items()))}
    write_sealed(folder / name, content)
    sync_folder(folder.parent)


def flushed_sha256(path: Path) -> str:
    """The SHA-256 of a file that is on the disk when this returns."""
    sync_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, SEAL).hexdigest()


def read_listing(folder: Path, name: str = LISTING) -> dict[str, Any]:
    """The content of a folder's listing, which is itself checked; `files` has names and hashes."""
    content = read_sealed(folder / name)
    if not isinstance(content.get("files"), dict) or not content["files"]:
        raise StoreError(str(folder / name), "lists no files", RESTORE)
    return dict(content)


def folder_damage(folder: Path, name: str = LISTING) -> str:
    """What is wrong with a listed folder, with the names of the files; empty if nothing is."""
    try:
        listed = read_listing(folder, name)["files"]
    except StoreError as error:
        return f"{name} {error.what}"
    missing = [each for each in listed if not (folder / each).is_file()]
    if missing:
        return f"{', '.join(missing)} is missing"
    changed = [each for each, sha256 in listed.items() if file_sha256(folder / each) != sha256]
    return f"{', '.join(changed)} differs from its hash" if changed else ""


def check_folder(folder: Path, name: str = LISTING) -> None:
    """Refuse a folder whose files are not those of its listing."""
    damage = folder_damage(folder, name)
    if damage:
        raise StoreError(str(folder), f"is damaged: {damage}", RESTORE)
    listed = read_listing(folder, name)["files"]
    foreign = [
        path.name
        for path in _files(folder)
        if path.relative_to(folder).as_posix() not in listed and path.name != name
    ]
    if foreign:
        what = f"holds files that are not in {name}: {', '.join(foreign[:3])}"
        raise StoreError(str(folder), what, "move them elsewhere: nothing unlisted is loaded")


def folder_sha256(folder: Path) -> str | None:
    """One hash for all files of a folder, by name and content; None if it is not there."""
    if not folder.is_dir():
        return None
    return content_sha256(
        {
            path.relative_to(folder).as_posix(): file_sha256(path)
            for path in _files(folder)
            if path.name != LISTING
        }
    )


def _files(folder: Path) -> Iterator[Path]:
    """Files in a folder and below; notes for people and hidden files are not part of it."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and path.suffix != ".md":
            yield path


def copy_folder(source: Path, target: Path, change: Callable[[Path], None] | None = None) -> None:
    """Copy a folder such that the target is complete or absent; replaces an older copy.

    The copy has the listing of its source, or gets one. `change` edits the copy before it is
    listed.
    """
    fresh = scratch_folder(target)
    shutil.copytree(source, fresh)
    if (fresh / LISTING).exists():
        check_folder(fresh)
    if change is not None:
        change(fresh)
    write_listing(fresh)
    replace_folder(fresh, target)
