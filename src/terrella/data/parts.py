"""Parts: the files of an episode store, self-describing Parquet with consecutive episodes.

The footer of a part says which episodes it contains, from which run spec, and their counts, so that
a resumed run need not read the rows again. The bytes are a pure function of the episodes. A part's
name ends with the start of its hash: it becomes durable with the part, before any manifest.
    data = encode_part(episodes, first=2000, spec=digest)
    describe_part(data).counts.successes
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
from terrella.core.integrity import file_sha256
from terrella.core.types import Episode
from terrella.core.untrusted import parse_json, reading
from terrella.data.schema import SCHEMA, VERSION, episodes_to_table, table_to_episodes

FORMAT = "terrella-episodes"
ROWS_PER_GROUP, BYTES_PER_GROUP = 16_384, 64_000_000
"""Limits of a row group, which readers hold in memory as a whole; rows with frames are large."""
NAME_DIGITS = 16
"""Of a part's hash, in its name; the manifest has all 64."""
PART_NAME = re.compile(rf"part-(\d{{9,}})-(\d{{9,}})-([0-9a-f]{{{NAME_DIGITS}}})\.parquet")
_FOOTER_KEY = FORMAT.encode()
_TEXT_COLUMNS = [column.name for column in SCHEMA if pa.types.is_string(column.type)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeCounts:
    """Counts over a set of episodes."""

    episodes: int = 0
    transitions: int = 0
    successes: int = 0
    broken: int = 0
    """Episodes that failed for a technical reason; their outcome is masked."""
    masked: Mapping[str, int] = field(default_factory=dict[str, int])
    """Episodes with a masked outcome, by its cause (`core.types.Status`)."""
    stops: Mapping[str, int] = field(default_factory=dict[str, int])
    first_error: str = ""

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> EpisodeCounts:
        masked = [episode.outcome.status.value for episode in episodes if episode.outcome.masked]
        return cls(
            episodes=len(episodes),
            transitions=sum(len(episode.transitions) for episode in episodes),
            successes=sum(episode.outcome.value == 1.0 for episode in episodes),
            broken=sum(episode.stop.is_broken for episode in episodes),
            masked=dict(Counter(masked)),
            stops=dict(Counter(episode.stop.value for episode in episodes)),
            first_error=next((episode.error for episode in episodes if episode.error), ""),
        )

    @property
    def judged(self) -> int:
        """Episodes whose outcome is not masked: the denominator of the success rate."""
        return self.episodes - sum(self.masked.values())

    def __add__(self, other: EpisodeCounts) -> EpisodeCounts:
        return EpisodeCounts(
            episodes=self.episodes + other.episodes,
            transitions=self.transitions + other.transitions,
            successes=self.successes + other.successes,
            broken=self.broken + other.broken,
            masked=dict(Counter(self.masked) + Counter(other.masked)),
            stops=dict(Counter(self.stops) + Counter(other.stops)),
            first_error=self.first_error or other.first_error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part as the manifest lists it."""

    name: str
    sha256: str
    bytes: int
    first: int
    counts: EpisodeCounts


def part_name(first: int, last: int, sha256: str) -> str:
    """Name of the file with the episodes `first` to `last` (exclusive) and this hash.

    Another content has another name, so a part is never edited in place.
    """
    return f"part-{first:09d}-{last:09d}-{sha256[:NAME_DIGITS]}.parquet"


def is_intact(path: Path) -> bool:
    """Whether a part's content is what its name says."""
    match = PART_NAME.fullmatch(path.name)
    return match is not None and file_sha256(path).startswith(match[3])


def encode_part(episodes: Sequence[Episode], first: int, spec: str) -> bytes:
    """Encode a part as Parquet bytes; a pure function of its arguments.

    `spec` is the hash of the spec of the run.
    """
    about = {
        "schema": VERSION,
        "plan": spec,  # the name of this key is part of the file format
        "first": first,
        "counts": dataclasses.asdict(EpisodeCounts.of(episodes)),
    }
    table = episodes_to_table(episodes, first)
    table = table.replace_schema_metadata({_FOOTER_KEY: json.dumps(about, sort_keys=True)})
    rows = BYTES_PER_GROUP * table.num_rows // (table.nbytes + 1)
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=_TEXT_COLUMNS,
        write_statistics=["episode", "step"],
        row_group_size=min(max(rows, 1), ROWS_PER_GROUP),
        write_page_checksum=True,
    )
    return sink.getvalue()


def decode_part(data: bytes) -> list[Episode]:
    """All episodes of an encoded part."""
    return [
        episode
        for table in part_tables(io.BytesIO(data), "part")
        for episode in table_to_episodes(table)
    ]


def episode_lengths(data: bytes) -> list[int]:
    """Number of transitions of each episode of an encoded part; reads one column only."""
    steps = pq.read_table(io.BytesIO(data), columns=["step"])["step"].to_numpy()
    starts = np.flatnonzero(steps <= 0)
    lengths = np.diff(np.append(starts, len(steps)))
    return list(map(int, np.where(steps[starts] < 0, 0, lengths)))


def describe_part(source: Path | bytes, spec: str | None = None) -> Part:
    """Read the description of a part from its footer.

    Raises StoreError for a file that is not a part, or of another version or spec.
    """
    name = source.name if isinstance(source, Path) else "part"
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as file:
        about = _read_footer(file, name)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.seek(0, io.SEEK_END)
    if spec is not None and about["plan"] != spec:
        raise StoreError(
            name,
            "was collected with another spec",
            "move it away and run again: its episodes will be collected again",
        )
    with reading_part(name):
        counts = record_from_json(EpisodeCounts, about["counts"])
        first = int(about["first"])
    return Part(
        name=part_name(first, first + counts.episodes, digest),
        sha256=digest,
        bytes=size,
        first=first,
        counts=counts,
    )


def check_version(where: str, version: Any) -> None:
    """Raise StoreError for another schema version."""
    if version != VERSION:
        raise StoreError(
            where,
            f"has schema version {version}; this terrella reads {VERSION}",
            "install the version of terrella that wrote it, or collect again",
        )


def _read_footer(file: BinaryIO, name: str) -> dict[str, Any]:
    with reading_part(name):
        metadata = pq.read_metadata(file).metadata or {}
    if _FOOTER_KEY not in metadata:
        raise StoreError(
            name, "is not part of an episode store", "open a folder written by `terrella collect`"
        )
    with reading_part(name):
        about = dict(parse_json(metadata[_FOOTER_KEY], name))
        check_version(name, about["schema"])
    return about


@contextlib.contextmanager
def reading_part(
    name: str, remedy: str = "delete it and collect again: its episodes will be collected again"
) -> Iterator[None]:
    """Report what Arrow and damaged rows raise as a StoreError that names the part."""
    with reading(name, remedy):
        try:
            yield
        except pa.ArrowException as error:  # not all of them are of Python's kinds, too
            raise ValueError(str(error)) from error


def part_tables(file: BinaryIO, name: str) -> Iterator[pa.Table]:
    """Yield one table of whole episodes per row group.

    The last episode of a group may continue in the next one, so it is carried over.
    """
    _read_footer(file, name)
    with reading_part(name):
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
    if not parquet.schema_arrow.equals(SCHEMA):
        raise StoreError(name, "has other columns than this version writes", "collect again")
    carried_over = SCHEMA.empty_table()
    for group in range(parquet.num_row_groups):
        with reading_part(name):
            rows = pa.concat_tables(
                [carried_over, parquet.read_row_group(group).replace_schema_metadata()]
            )
            # The last row says how many rows of its episode came before it.
            cut = rows.num_rows - max(rows["step"][-1].as_py(), 0) - 1
            if cut < 0:
                raise StoreError(name, "begins within an episode", "collect again")
        carried_over = rows.slice(cut)
        if cut:
            yield rows.slice(0, cut)
    if carried_over.num_rows:
        yield carried_over
