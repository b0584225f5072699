"""One file of an episode store: consecutive episodes as Parquet bytes that describe themselves.

A part's footer says which episodes it holds, which plan made them and what can be counted of them, so that a resumed
run need not read the rows again. Its bytes are a pure function of its episodes.
    data = encode_part(episodes, first=2000, plan=digest); describe_part(data).counts.successes
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from terrella.core.config import record_from_json
from terrella.core.errors import StoreError
from terrella.core.types import Episode
from terrella.data.schema import SCHEMA, VERSION, episodes_to_table, table_to_episodes

FORMAT = "terrella-episodes"
ROWS_PER_GROUP, BYTES_PER_GROUP = 16_384, 64_000_000
"""A row group is what a reader holds in memory: few rows when they are frames."""
PART_NAME = re.compile(r"part-(\d{9,})-(\d{9,})\.parquet")
_FOOTER_KEY = FORMAT.encode()
_TEXT_COLUMNS = [column.name for column in SCHEMA if pa.types.is_string(column.type)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What can be said of some episodes without reading them again."""

    episodes: int = 0
    transitions: int = 0
    successes: int = 0
    broken: int = 0
    """Episodes in which something of ours failed; their outcome is masked."""
    masked: Mapping[str, int] = field(default_factory=dict[str, int])
    """Outcomes that say nothing, by status."""
    stops: Mapping[str, int] = field(default_factory=dict[str, int])
    first_error: str = ""

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Counts:
        """Count them."""
        return cls(
            episodes=len(episodes), transitions=sum(len(episode.transitions) for episode in episodes),
            successes=sum(episode.outcome.value == 1.0 for episode in episodes),
            broken=sum(episode.stop.is_broken for episode in episodes),
            masked=dict(Counter(episode.outcome.status.value for episode in episodes if episode.outcome.masked)),
            stops=dict(Counter(episode.stop.value for episode in episodes)),
            first_error=next((episode.error for episode in episodes if episode.error), ""),
        )  # fmt: skip

    @property
    def judged(self) -> int:
        """Episodes whose outcome says something: the n of the success rate."""
        return self.episodes - sum(self.masked.values())

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            episodes=self.episodes + other.episodes, transitions=self.transitions + other.transitions,
            successes=self.successes + other.successes, broken=self.broken + other.broken,
            masked=dict(Counter(self.masked) + Counter(other.masked)),
            stops=dict(Counter(self.stops) + Counter(other.stops)),
            first_error=self.first_error or other.first_error,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part as the manifest lists it."""

    name: str
    sha256: str
    bytes: int
    first: int
    counts: Counts


def part_name(first: int, last: int) -> str:
    """The file that holds episodes `first` to `last` (exclusive); a longer part is another file, not an edit."""
    return f"part-{first:09d}-{last:09d}.parquet"


def encode_part(episodes: Sequence[Episode], first: int, plan: str) -> bytes:
    """A part as Parquet bytes: a pure function of its arguments. `plan` is the hash of the plan it belongs to."""
    about = {"schema": VERSION, "plan": plan, "first": first, "counts": dataclasses.asdict(Counts.of(episodes))}
    table = episodes_to_table(episodes, first)
    table = table.replace_schema_metadata({_FOOTER_KEY: json.dumps(about, sort_keys=True)})
    rows = BYTES_PER_GROUP * table.num_rows // (table.nbytes + 1)
    sink = io.BytesIO()
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=_TEXT_COLUMNS, write_statistics=["episode", "step"],
        row_group_size=min(max(rows, 1), ROWS_PER_GROUP),
    )  # fmt: skip
    return sink.getvalue()


def decode_part(data: bytes) -> list[Episode]:
    """All episodes of an encoded part."""
    return [episode for table in part_tables(io.BytesIO(data), "part") for episode in table_to_episodes(table)]


def episode_lengths(data: bytes) -> list[int]:
    """How many transitions each episode of an encoded part has, without reading more than one column."""
    steps = pq.read_table(io.BytesIO(data), columns=["step"])["step"].to_numpy()
    starts = np.flatnonzero(steps <= 0)
    lengths = np.diff(np.append(starts, len(steps)))
    return list(map(int, np.where(steps[starts] < 0, 0, lengths)))


def describe_part(source: Path | bytes, plan: str | None = None) -> Part:
    """A part's own description; a file that is not ours, of another version or of another plan is refused."""
    name = source.name if isinstance(source, Path) else "part"
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as file:
        about = _read_footer(file, name)
        file.seek(0)
        digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.seek(0, io.SEEK_END)
    if plan is not None and about["plan"] != plan:
        raise StoreError(name, "was made by another plan", "move it away and run again: it will be played anew")
    counts, first = record_from_json(Counts, about["counts"]), int(about["first"])
    return Part(name=part_name(first, first + counts.episodes), sha256=digest, bytes=size, first=first, counts=counts)


def check_version(where: str, version: Any) -> None:
    """Refuse another schema version, and say what to do."""
    if version != VERSION:
        remedy = "install the terrella that wrote it, or collect again"
        raise StoreError(where, f"has schema version {version}; this terrella reads {VERSION}", remedy)


def _read_footer(file: BinaryIO, name: str) -> dict[str, Any]:
    with _as_store_error(name):
        metadata = pq.read_metadata(file).metadata or {}
    if _FOOTER_KEY not in metadata:
        raise StoreError(name, "is not part of an episode store", "open a folder that `terrella collect` wrote")
    about = json.loads(metadata[_FOOTER_KEY])
    check_version(name, about["schema"])
    return dict(about)


@contextlib.contextmanager
def _as_store_error(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise StoreError(name, f"cannot be read: {error}", "delete it and collect again: it is played anew") from error


def part_tables(file: BinaryIO, name: str) -> Iterator[pa.Table]:
    """Row groups cut at episodes: the last, perhaps unfinished, episode of a group waits for the next one."""
    _read_footer(file, name)
    parquet = pq.ParquetFile(file)
    if not parquet.schema_arrow.equals(SCHEMA):
        raise StoreError(name, "has other columns than this version writes", "collect again")
    waiting = SCHEMA.empty_table()
    for group in range(parquet.num_row_groups):
        with _as_store_error(name):
            rows = pa.concat_tables([waiting, parquet.read_row_group(group).replace_schema_metadata()])
        cut = rows.num_rows - max(rows["step"][-1].as_py(), 0) - 1
        waiting = rows.slice(cut)
        if cut:
            yield rows.slice(0, cut)
    if waiting.num_rows:
        yield waiting
