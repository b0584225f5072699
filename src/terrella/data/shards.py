"""Episodes of stores in shards: any number of them, in bounded memory.

A shard is one row group of a part (at most 64 MB), with the episodes that begin in it. Of each
shard only the lengths of its episodes are kept in memory; its frames are read when they are needed.
`shard_draws.py` draws from a few shards at a time.
    shards = StoredShards([Path("runs/rt1")], Split.TRAIN)
    for episode in shards.episodes(): ...
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from terrella.core.integrity import check_file
from terrella.core.types import Episode, Split, Stop
from terrella.data.parts import Part, reading_part
from terrella.data.schema import SCHEMA, table_to_episodes
from terrella.data.store import AGAIN, EpisodeStore

INDEX_COLUMNS = ["step", "split", "stop"]
BROKEN = tuple(stop.value for stop in Stop if stop.is_broken)


class Shards(abc.ABC):
    """Shards of episodes that have a step and did not break."""

    lengths: Sequence[NDArray[np.int64]]
    """Transitions of each episode, shard by shard."""

    @abc.abstractmethod
    def load(self, shard: int) -> list[Episode]:
        """The episodes of a shard, in the order of `lengths`."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def count(self) -> int:
        """Number of episodes."""
        return sum(map(len, self.lengths))

    @property
    def transitions(self) -> int:
        return int(sum(lengths.sum() for lengths in self.lengths))

    def episodes(self) -> Iterator[Episode]:
        """All episodes in order, one shard in memory at a time."""
        for shard in range(len(self)):
            yield from self.load(shard)


@dataclass(frozen=True)
class _Place:
    """Where a shard is: the row group that its episodes begin in."""

    store: EpisodeStore
    part: Part
    group: int


class StoredShards(Shards):
    """The episodes of one split, in any number of stores."""

    def __init__(self, folders: Sequence[Path], split: Split) -> None:
        """Reads three small columns of every part, and no frame."""
        self.split = split
        self.places: list[_Place] = []
        self.lengths: list[NDArray[np.int64]] = []
        self._checked: set[Path] = set()
        for folder in folders:
            store = EpisodeStore.open(folder)
            for part in store.parts:
                self._index(store, part)

    def _index(self, store: EpisodeStore, part: Part) -> None:
        path = store.folder / part.name
        with reading_part(str(path), AGAIN), _opened(path) as file:
            first_row = 0
            table = file.read(columns=INDEX_COLUMNS)
            starts, lengths, wanted = _episodes_of(table, self.split)
            for group in range(file.num_row_groups):
                end = first_row + file.metadata.row_group(group).num_rows
                here = (starts >= first_row) & (starts < end) & wanted
                if here.any():
                    self.places.append(_Place(store, part, group))
                    self.lengths.append(lengths[here])
                first_row = end

    def load(self, shard: int) -> list[Episode]:
        place = self.places[shard]
        rows = self._rows(place, SCHEMA.names)
        with reading_part(str(place.store.folder / place.part.name), AGAIN):
            return table_to_episodes(rows)

    def actions(self, limit: int, order: Sequence[int]) -> list[str]:
        """Actions of whole shards, in this order of shards, until there are `limit` of them."""
        found: list[str] = []
        for shard in order:
            rows = self._rows(self.places[shard], [*INDEX_COLUMNS, "action"])
            found += rows["action"].to_pylist()
            if len(found) >= limit:
                break
        return found

    def _rows(self, place: _Place, columns: Sequence[str]) -> pa.Table:
        """The rows of the episodes of this split that begin in the place's row group."""
        path = place.store.folder / place.part.name
        if path not in self._checked:
            check_file(path, place.part.sha256, AGAIN)
            self._checked.add(path)
        with reading_part(str(path), AGAIN), _opened(path) as file:
            pieces = [file.read_row_group(place.group, columns=list(columns))]
            first = int(np.flatnonzero(pieces[0]["step"].to_numpy() <= 0)[0])
            pieces[0] = pieces[0].slice(first)
            for group in range(place.group + 1, file.num_row_groups):  # its last episode goes on
                rows = file.read_row_group(group, columns=list(columns))
                begins = np.flatnonzero(rows["step"].to_numpy() <= 0)
                pieces.append(rows.slice(0, int(begins[0])) if len(begins) else rows)
                if len(begins):
                    break
        table = pa.concat_tables(pieces).replace_schema_metadata()
        _, rows_of, wanted = _episodes_of(table, self.split)
        return table.filter(pa.array(np.repeat(wanted, rows_of)))


def _opened(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, page_checksum_verification=True)


def _episodes_of(
    table: pa.Table, split: Split
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """First row, number of rows and whether it is wanted, of each episode."""
    steps = table["step"].to_numpy()
    starts = np.flatnonzero(steps <= 0)
    lengths = np.diff(np.append(starts, len(steps)))
    firsts = table.select(["split", "stop"]).take(pa.array(starts))
    splits = np.array(firsts["split"].to_pylist())
    stops = np.array(firsts["stop"].to_pylist())
    wanted = (steps[starts] == 0) & (splits == split.value) & ~np.isin(stops, BROKEN)
    return starts, lengths, wanted
