"""The episode store: a folder of Parquet parts and a manifest.

A part contains consecutive episodes, is named after them, and appears by rename, so it is always
complete. `spec.json` is written first and says what the episodes are a function of;
`manifest.json` is written last, so a store with a manifest is complete. No file contains a time, a
host or a worker count: the same spec gives the same bytes.
    store = EpisodeStore.open("runs/lake")
    for episode in store.episodes(): ...        # one row group in memory at a time
    store.verify()                              # compares hashes with the manifest
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from terrella.core.config import record_from_json
from terrella.core.errors import ConfigError, StoreError
from terrella.core.files import SCRATCH, read_json, write_atomic, write_json
from terrella.core.run_folder import MANIFEST, OLD_SPEC, SPEC
from terrella.core.types import Episode, Transition
from terrella.data.parts import (
    FORMAT,
    PART_NAME,
    EpisodeCounts,
    Part,
    check_version,
    describe_part,
    part_tables,
)
from terrella.data.schema import VERSION, table_to_episodes

# --- writing --------------------------------------------------------------------------------------


def write_part(folder: Path, data: bytes) -> Part:
    """Write an encoded part into the folder, named after its episodes."""
    part = describe_part(data)
    write_atomic(folder / part.name, data)
    return part


def find_parts(folder: Path) -> dict[tuple[int, int], Path]:
    """All parts in a folder, in the manifest or not, by their range (first, last) of episodes."""
    matches = ((PART_NAME.fullmatch(entry.name), entry) for entry in folder.iterdir())
    return {(int(match[1]), int(match[2])): entry for match, entry in matches if match}


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
    write_json(folder / MANIFEST, manifest, sort_keys=True)
    remove_leftovers(folder, parts)
    return dict(read_json(folder / MANIFEST))


def remove_leftovers(folder: Path, listed: Sequence[Part] = ()) -> None:
    """Remove temporary files of a killed run, and parts that the listed ones have replaced.

    Parts beyond the listed ones stay: they belong to an unfinished extension of the store.
    """
    names = {part.name for part in listed}
    end = sum(part.counts.episodes for part in listed)
    for (_, last), path in find_parts(folder).items():
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
        if not (folder / MANIFEST).exists():
            if (folder / SPEC).exists() or (folder / OLD_SPEC).exists():
                raise StoreError(
                    str(folder),
                    "is incomplete: its collection was not finished",
                    "run the same `terrella collect` again: it resumes",
                )
            raise StoreError(str(folder), f"has no {MANIFEST}", "check the path")
        manifest = read_json(folder / MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise StoreError(
                str(folder),
                "is not an episode store",
                "open a folder written by `terrella collect`",
            )
        check_version(str(folder), manifest.get("schema"))
        return cls(folder, manifest, _listed_parts(folder, manifest))

    def __len__(self) -> int:
        return sum(part.counts.episodes for part in self.parts)

    def tables(self) -> Iterator[pa.Table]:
        """Yield tables of whole episodes, about one row group at a time."""
        for part in self.parts:
            with (self.folder / part.name).open("rb") as file:
                yield from part_tables(file, part.name)

    def episodes(self) -> Iterator[Episode]:
        """Yield all episodes in order."""
        for table in self.tables():
            try:
                episodes = table_to_episodes(table)
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(
                    str(self.folder),
                    f"a row is damaged: {error}",
                    "call `verify` to find out which part",
                ) from error
            yield from episodes

    def transitions(self) -> Iterator[Transition]:
        """Yield all transitions in order."""
        for episode in self.episodes():
            yield from episode.transitions

    def verify(self) -> None:
        """Hash every part; StoreError if one differs from the manifest."""
        changed = [
            part.name for part in self.parts if _digest(self.folder / part.name) != part.sha256
        ]
        if changed:
            raise StoreError(
                str(self.folder),
                f"differs from its manifest: {', '.join(changed)}",
                "collect it again",
            )


def _listed_parts(folder: Path, manifest: Mapping[str, Any]) -> list[Part]:
    try:
        parts = [record_from_json(Part, part) for part in manifest["parts"]]
    except (ConfigError, KeyError, TypeError) as error:
        raise StoreError(
            str(folder / MANIFEST), f"has a malformed list of parts: {error}", "collect again"
        ) from error
    for part in parts:
        path = folder / part.name
        # A manifest may come from an untrusted source: any other name could point out of the
        # folder.
        if (
            not PART_NAME.fullmatch(part.name)
            or not path.is_file()
            or path.stat().st_size != part.bytes
        ):
            raise StoreError(
                str(path),
                "is missing, or has another size than in the manifest",
                "collect it again",
            )
    return parts


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
