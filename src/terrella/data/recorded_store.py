"""Recordings into an episode store: a chunk at a time, continued after a kill.

Parts hold a bounded number of bytes, so a dataset of any size needs little memory. The parts that
an earlier run wrote are kept: reading goes on with the first recording that is missing.
    manifest = fill_store(folder, spec, read=lambda first: read_lerobot(source, first=first), ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from terrella.core.errors import StoreError
from terrella.core.files import locked
from terrella.core.run_folder import MANIFEST, check_spec
from terrella.core.types import Episode, Frames, Observation
from terrella.data import store
from terrella.data.parts import EpisodeCounts, Part, describe_part, encode_part

CHUNK_EPISODES, CHUNK_BYTES = 500, 2**26
"""A part ends with the recording that reaches one of these."""
Read = Callable[[int], Iterator[Episode]]
"""Reads recordings in order, from this number on."""
Show = Callable[[EpisodeCounts], None]


def fill_store(
    folder: Path, spec: Mapping[str, Any], read: Read, *, show: Show = lambda _: None
) -> dict[str, Any]:
    """Write what is missing and return the manifest; a whole store is left as it is."""
    with locked(folder):
        spec_hash = check_spec(folder, spec)
        intact = store.intact_parts(folder)
        if (folder / MANIFEST).exists():
            known = store.read_store_manifest(folder)
            names = {path.name for path in intact.values()}
            if {part.name for part in store.listed_parts(folder, known)} <= names:
                return known
            (folder / MANIFEST).unlink()
        parts = list(_written(intact, spec_hash))
        counts = sum((part.counts for part in parts), EpisodeCounts())
        show(counts)
        for chunk in _chunks(read(counts.episodes)):
            data = encode_part(chunk, counts.episodes, spec_hash)
            parts.append(store.write_part(folder, data))
            counts += parts[-1].counts
            show(counts)
        if not parts:
            raise StoreError(str(folder), "the source has no recording", "check the path")
        return store.finish(folder, parts, spec)


def _written(intact: Mapping[tuple[int, int], Path], spec_hash: str) -> Iterator[Part]:
    """The parts from the first recording on, as far as none is missing; others are removed."""
    end = 0
    for (first, last), path in sorted(intact.items()):
        if first != end:
            path.unlink()
            continue
        yield describe_part(path, spec_hash)
        end = last


def _chunks(episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
    chunk: list[Episode] = []
    size = 0
    for episode in episodes:
        chunk.append(episode)
        size += sum(_bytes(step.observation) for step in episode.transitions)
        if len(chunk) == CHUNK_EPISODES or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _bytes(observation: Observation) -> int:
    return len(observation.data if isinstance(observation, Frames) else observation.text)
