"""The episode store: a folder of Parquet parts and a `manifest.json` that is written last, so it is whole or absent.

A part holds consecutive episodes and is named after them; it appears by rename, complete. `plan.json`, written first,
says what the episodes are a function of. Nothing holds a time, a host or a worker count: same plan, same bytes.
    store = EpisodeStore.open("runs/lake")
    for episode in store.episodes(): ...        # one row group in memory at a time
    store.verify()                              # hashes against the manifest
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from terrella.core.config import record_from_json
from terrella.core.errors import ConfigError, StoreError
from terrella.core.types import Episode, Transition, canonical_json
from terrella.data.parts import FORMAT, PART_NAME, Counts, Part, check_version, describe_part, part_tables
from terrella.data.schema import VERSION, table_to_episodes

PLAN, MANIFEST, SCRATCH = "plan.json", "manifest.json", ".tmp"


# --- writing ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder for writing (made if absent). The lock dies with the process, and leaves no file behind.

    Unless told to `wait` for whoever holds it, which is for what several jobs share, a held folder is an error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            remedy = "wait for it, or choose another folder"
            raise StoreError(str(folder), "another process is writing here", remedy) from error
        yield
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file that is complete or absent, even when the machine loses power."""
    scratch = path.with_name(path.name + SCRATCH)
    with scratch.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # the name, too, must survive
    finally:
        os.close(handle)


def write_part(folder: Path, data: bytes) -> Part:
    """Put an encoded part into the folder, under the name that says which episodes it holds."""
    part = describe_part(data)
    write_atomic(folder / part.name, data)
    return part


def parts_there(folder: Path) -> dict[tuple[int, int], Path]:
    """The parts in a folder by the episodes (from, to) they hold; whether they are listed is the manifest's matter."""
    matches = ((PART_NAME.fullmatch(entry.name), entry) for entry in folder.iterdir())
    return {(int(match[1]), int(match[2])): entry for match, entry in matches if match}


def settle_plan(folder: Path, plan: Mapping[str, Any], ignore: Sequence[str] = ()) -> str:
    """Write the plan, or check that the folder was begun with the same one; returns the hash that parts carry."""
    path = folder / PLAN
    if path.exists():
        changed = [line for line in _differences(_read_json(path), plan) if line.split(".")[0] not in ignore]
        if changed:
            raise StoreError(str(folder), "was begun with another plan: " + "; ".join(changed), "choose another folder")
    else:
        strangers = sorted(entry.name for entry in folder.iterdir() if entry.suffix != SCRATCH)
        if strangers:
            what = f"holds other files ({', '.join(strangers[:3])}) and no {PLAN}"
            raise StoreError(str(folder), what, "choose an empty or a new folder")
        write_atomic(path, _pretty(plan))
    return hashlib.sha256(canonical_json(plan).encode()).hexdigest()


def _differences(known: Any, asked: Any, where: str = "") -> list[str]:
    if not (isinstance(known, Mapping) and isinstance(asked, Mapping)):
        return [] if known == asked else [f"{where} is {known!r} there, {asked!r} here"]
    lines: list[str] = []
    for key in sorted(known.keys() | asked.keys()):
        lines += _differences(known.get(key), asked.get(key), f"{where}.{key}" if where else key)
    return lines


def finish(folder: Path, parts: Sequence[Part], about: Mapping[str, Any]) -> dict[str, Any]:
    """Write the manifest: from now on the store is whole."""
    counts = sum((part.counts for part in parts), Counts())
    manifest = {
        "format": FORMAT, "schema": VERSION, **about, "counts": dataclasses.asdict(counts),
        "parts": [dataclasses.asdict(part) for part in parts],
    }  # fmt: skip
    write_atomic(folder / MANIFEST, _pretty(manifest))
    remove_leftovers(folder, parts)
    return dict(_read_json(folder / MANIFEST))


def remove_leftovers(folder: Path, listed: Sequence[Part] = ()) -> None:
    """Remove half-written files of a killed run, and parts that the listed ones have replaced.

    Parts that reach beyond the listed ones stay: they belong to an extension that was not finished.
    """
    names, end = {part.name for part in listed}, sum(part.counts.episodes for part in listed)
    for (_, last), path in parts_there(folder).items():
        if last <= end and path.name not in names:
            path.unlink()
    for path in folder.glob(f"*{SCRATCH}"):
        path.unlink()


def _pretty(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise StoreError(str(path), f"cannot be read: {error}", "this folder is damaged: collect again") from error


# --- reading ------------------------------------------------------------------------------------------------------


class EpisodeStore:
    """A whole store, read in order and in bounded memory. `len` is its number of episodes."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any], parts: Sequence[Part]) -> None:
        """Use `open`."""
        self.folder, self.manifest, self.parts = folder, manifest, tuple(parts)

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open a store; one that is not whole, not ours or of another version is refused with the reason."""
        folder = Path(folder)
        if not (folder / MANIFEST).exists():
            begun = (folder / PLAN).exists()
            what = "is not whole: it was begun, not finished" if begun else f"holds no {MANIFEST}"
            raise StoreError(str(folder), what, "run the same collect again: it resumes" if begun else "check the path")
        manifest = _read_json(folder / MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise StoreError(str(folder), "is not an episode store", "open a folder that `terrella collect` wrote")
        check_version(str(folder), manifest.get("schema"))
        return cls(folder, manifest, _listed_parts(folder, manifest))

    def __len__(self) -> int:
        return sum(part.counts.episodes for part in self.parts)

    def tables(self) -> Iterator[pa.Table]:
        """Tables of whole episodes, one row group (or a little more) at a time."""
        for part in self.parts:
            with (self.folder / part.name).open("rb") as file:
                yield from part_tables(file, part.name)

    def episodes(self) -> Iterator[Episode]:
        """All episodes in order."""
        for table in self.tables():
            try:
                episodes = table_to_episodes(table)
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(str(self.folder), f"a row is damaged: {error}", "`verify` names the part") from error
            yield from episodes

    def transitions(self) -> Iterator[Transition]:
        """All transitions in order; episodes without one pass unseen."""
        for episode in self.episodes():
            yield from episode.transitions

    def verify(self) -> None:
        """Hash every part again; a store with any other byte than the manifest promised is refused."""
        changed = [part.name for part in self.parts if _digest(self.folder / part.name) != part.sha256]
        if changed:
            raise StoreError(str(self.folder), f"differs from its manifest: {', '.join(changed)}", "collect it again")


def _listed_parts(folder: Path, manifest: Mapping[str, Any]) -> list[Part]:
    try:
        parts = [record_from_json(Part, part) for part in manifest["parts"]]
    except (ConfigError, KeyError, TypeError) as error:
        raise StoreError(str(folder / MANIFEST), f"lists its parts wrongly: {error}", "collect again") from error
    for part in parts:
        path = folder / part.name
        # A manifest may come from elsewhere: a name that is not a part's could point out of the folder.
        if not PART_NAME.fullmatch(part.name) or not path.is_file() or path.stat().st_size != part.bytes:
            raise StoreError(str(path), "is missing or of another size than the manifest says", "collect it again")
    return parts


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
