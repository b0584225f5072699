"""The episode store: a folder of Parquet parts and a manifest.

A part contains consecutive episodes, is named after them, and appears by rename, so it is always
complete. `spec.json` is written first and says what the episodes are a function of;
`manifest.json` is written last, so a store with a manifest is complete. No file contains a time, a
host or a worker count: the same spec gives the same bytes. A part is compared with its hash when it
is first read, the manifest whenever it is read.
    store = EpisodeStore.open("runs/episodes")
    for episode in store.episodes(): ...        # one row group in memory at a time
    store.verify()                              # compares all parts with their hashes
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from terrella.core.config import record_from_json
from terrella.core.errors import ConfigError, StoreError
from terrella.core.files import SCRATCH, read_json, write_atomic
from terrella.core.integrity import (
    SEAL,
    check_file,
    content_sha256,
    file_sha256,
    read_sealed,
    write_sealed,
)
from terrella.core.run_folder import MANIFEST, OLD_SPEC, SPEC
from terrella.core.types import Episode, Transition
from terrella.core.untrusted import reading
from terrella.data.parts import (
    FORMAT,
    PART_NAME,
    EpisodeCounts,
    Part,
    check_version,
    describe_part,
    is_intact,
    part_name,
    part_tables,
)
from terrella.data.schema import COLLECT_AGAIN, VERSION, table_to_episodes

logger = logging.getLogger("terrella")
AGAIN = "run the same `terrella collect` again: only what is damaged is collected again"
NOT_A_STORE = "is not an episode store"

# --- writing --------------------------------------------------------------------------------------


def write_part(folder: Path, data: bytes) -> Part:
    """Write an encoded part into the folder, named after its episodes."""
    part = describe_part(data)
    write_atomic(folder / part.name, data)
    return part


def find_parts(folder: Path) -> list[tuple[tuple[int, int], Path]]:
    """All parts in a folder, listed or not, with their ranges (first, last) of episodes."""
    matches = ((PART_NAME.fullmatch(entry.name), entry) for entry in sorted(folder.iterdir()))
    return [((int(match[1]), int(match[2])), entry) for match, entry in matches if match]


def intact_parts(folder: Path) -> dict[tuple[int, int], Path]:
    """The parts in a folder by their ranges; damaged ones are left out and named in a warning."""
    intact = {}
    for chunk, path in find_parts(folder):
        if is_intact(path):
            intact[chunk] = path
        else:
            logger.warning("%s is damaged: its episodes are collected again", path)
    return intact


def finish(folder: Path, parts: Sequence[Part], about: Mapping[str, Any]) -> dict[str, Any]:
    """Write the manifest, which completes the store, and return it."""
    counts = sum((part.counts for part in parts), EpisodeCounts())
    manifest = {
        "format": FORMAT,
        "schema": VERSION,
        **about,
        "counts": dataclasses.asdict(counts),
        "parts": [dataclasses.asdict(part) for part in parts],
    }
    write_sealed(folder / MANIFEST, manifest, sort_keys=True)
    remove_leftovers(folder, parts)
    return dict(read_sealed(folder / MANIFEST))


def remove_leftovers(folder: Path, listed: Sequence[Part] = ()) -> None:
    """Remove temporary files of a killed run, and parts that the listed ones have replaced.

    Parts beyond the listed ones stay: they belong to an unfinished extension of the store.
    """
    names = {part.name for part in listed}
    end = sum(part.counts.episodes for part in listed)
    for (_, last), path in find_parts(folder):
        if last <= end and path.name not in names:
            path.unlink()
    for path in folder.glob(f"*{SCRATCH}"):
        path.unlink()


# --- reading --------------------------------------------------------------------------------------


class EpisodeStore:
    """A complete store, read in order and in bounded memory. `len` is its number of episodes."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any], parts: Sequence[Part]) -> None:
        """Use `open` instead."""
        self.folder = folder
        self.manifest = manifest
        self.parts = tuple(parts)

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open a store.

        Raises StoreError if it is incomplete, not an episode store, or of another version.
        """
        folder = Path(folder)
        if not folder.exists():
            raise StoreError(
                str(folder),
                "there is no such folder",
                f"check the path, or collect it: terrella collect WORLD --out {folder}",
            )
        if not (folder / MANIFEST).exists():
            if (folder / SPEC).exists() or (folder / OLD_SPEC).exists():
                raise StoreError(
                    str(folder),
                    "is incomplete: its collection was not finished",
                    "run the same `terrella collect` again: it resumes",
                )
            raise StoreError(str(folder), f"has no {MANIFEST}", "check the path")
        manifest = read_store_manifest(folder)
        parts = listed_parts(folder, manifest)
        for part in parts:
            path = folder / part.name
            if not path.is_file() or path.stat().st_size != part.bytes:
                what = "is missing, or has another size than in the manifest"
                raise StoreError(str(path), what, AGAIN)
        return cls(folder, manifest, parts)

    def __len__(self) -> int:
        return sum(part.counts.episodes for part in self.parts)

    @property
    def sha256(self) -> str:
        """Of the manifest, which has the hashes of the parts: one hash for all that is stored."""
        return content_sha256(self.manifest)

    def tables(self) -> Iterator[pa.Table]:
        """Yield tables of whole episodes, about one row group at a time."""
        for part in self.parts:
            check_file(self.folder / part.name, part.sha256, AGAIN)
            episodes = transitions = 0
            with (self.folder / part.name).open("rb") as file:
                for table in part_tables(file, part.name):
                    steps = table["step"].to_numpy()
                    episodes += int((steps <= 0).sum())
                    transitions += int((steps >= 0).sum())
                    yield table
            if (episodes, transitions) != (part.counts.episodes, part.counts.transitions):
                what = f"has {episodes} episodes and {transitions} steps, and its list says "
                what += f"{part.counts.episodes} and {part.counts.transitions}"
                raise StoreError(str(self.folder / part.name), what, COLLECT_AGAIN)

    def episodes(self) -> Iterator[Episode]:
        """Yield all episodes in order."""
        for table in self.tables():
            with reading(str(self.folder), COLLECT_AGAIN):
                episodes = table_to_episodes(table)
            yield from episodes

    def transitions(self) -> Iterator[Transition]:
        """Yield all transitions in order."""
        for episode in self.episodes():
            yield from episode.transitions

    def verify(self) -> None:
        """Hash every part; StoreError if one differs from the manifest."""
        changed = [
            part.name for part in self.parts if file_sha256(self.folder / part.name) != part.sha256
        ]
        if changed:
            what = f"differs from its manifest: {', '.join(changed)}"
            raise StoreError(str(self.folder), what, AGAIN)


def read_store_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a store; one that is damaged or of another version is refused."""
    path, remedy = folder / MANIFEST, "run the same `terrella collect` again: it is written again"
    manifest = read_json(path)
    if isinstance(manifest, dict) and SEAL in manifest:
        manifest = read_sealed(path, remedy)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StoreError(str(folder), NOT_A_STORE, "open a folder written by `terrella collect`")
    check_version(str(folder), manifest.get("schema"))
    return dict(read_sealed(path, remedy))


def listed_parts(folder: Path, manifest: Mapping[str, Any]) -> list[Part]:
    """The parts that a manifest lists, whether they are there or not."""
    try:
        parts = [record_from_json(Part, part) for part in manifest["parts"]]
    except (ConfigError, KeyError, TypeError) as error:
        raise StoreError(
            str(folder / MANIFEST), f"has a malformed list of parts: {error}", "collect again"
        ) from error
    for part in parts:
        # A manifest may come from an untrusted source: any other name could point out of the
        # folder.
        name = part_name(part.first, part.first + part.counts.episodes, part.sha256)
        if part.name != name or not PART_NAME.fullmatch(name):
            what = f"lists {part.name!r}, which is not the name of that part"
            raise StoreError(str(folder / MANIFEST), what, "collect again")
    return parts
