"""Checkpoint folders: complete or absent, every file hashed, only listed files loaded.

The manifest is written last and carries its own hash. A checkpoint that a killed run left, or that
was damaged later, is named and removed, and the one before it is used.
    write_manifest(folder / "checkpoint-40", step=40)
    step = newest_complete(folder)
    path = listed_file(folder / "checkpoint-40", "model.safetensors")
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from terrella.core.errors import StoreError
from terrella.core.integrity import (
    MAKE_AGAIN,
    flushed_sha256,
    folder_damage,
    read_listing,
    read_sealed,
    write_listing,
    write_sealed,
)

FORMAT = "terrella checkpoint 2"
PREFIX, MANIFEST, DIGESTS = "checkpoint-", "manifest.json", "digests-"
KEEP = 2
"""Checkpoints to keep: the newest, and one more in case it is damaged."""

logger = logging.getLogger("terrella")


def newest_complete(folder: Path) -> int:
    """The step of the newest intact checkpoint, or 0. Incomplete and damaged ones are removed."""
    complete = complete_steps(folder)
    for path in folder.glob(f"{PREFIX}*"):
        if path.name not in {f"{PREFIX}{step}" for step in complete}:
            remove_checkpoint(path)
    for step in sorted(complete, reverse=True):
        path = folder / f"{PREFIX}{step}"
        damage = checkpoint_damage(path)
        if not damage:
            return step
        logger.warning("%s is damaged and removed, the one before it is used: %s", path, damage)
        remove_checkpoint(path)
    return 0


def write_digests(folder: Path, process: int, files: Sequence[Path]) -> None:
    """Hash and flush the files that a process wrote, for the manifest."""
    digests = {path.name: flushed_sha256(path) for path in files}
    write_sealed(folder / f"{DIGESTS}{process}.json", digests)


def write_manifest(folder: Path, step: int) -> None:
    """Hash all files that their writers did not, flush them to disk, then write the manifest."""
    known: dict[str, str] = {}
    for path in folder.glob(f"{DIGESTS}*.json"):
        known.update(read_sealed(path, MAKE_AGAIN))
    write_listing(folder, MANIFEST, known=known, about={"format": FORMAT, "step": step})


def remove_old(folder: Path) -> None:
    """Remove all but the last checkpoints."""
    for step in sorted(complete_steps(folder))[:-KEEP]:
        remove_checkpoint(folder / f"{PREFIX}{step}")


def remove_checkpoint(folder: Path) -> None:
    # The manifest first: a folder that is half removed must not look complete.
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder)


def complete_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that have a manifest, unordered."""
    names = [path.parent.name.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*/{MANIFEST}")]
    return [int(name) for name in names if name.isdecimal()]


def checkpoint_damage(folder: Path) -> str:
    """What differs from the manifest of a checkpoint; empty if nothing does."""
    damage = folder_damage(folder, MANIFEST)
    if damage:
        return damage
    about = read_listing(folder, MANIFEST)
    if about.get("format") != FORMAT or not isinstance(about.get("step"), int):
        return f"{MANIFEST} is not of a checkpoint of this version"
    return ""


def saved_step(folder: Path) -> int:
    """The step of a checkpoint, as its manifest says."""
    return int(read_listing(folder, MANIFEST)["step"])


def listed_names(folder: Path) -> set[str]:
    """Names of the files that belong to a checkpoint."""
    return set(read_listing(folder, MANIFEST)["files"])


def listed_file(folder: Path, name: str) -> Path:
    """A file of a checkpoint; one that its manifest does not list is refused."""
    if name not in listed_names(folder):
        raise StoreError(str(folder), f"its manifest lists no {name}", "delete this checkpoint")
    return folder / name
