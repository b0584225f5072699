"""Conversations and chains of thought into one form: Parquet files with a column `messages`.

`terrella sft` reads the folder. Each file holds some hundred rows and appears whole, so an import
that was killed continues; the listing at the end has their hashes.
    ImportChats(ImportChats.Config(source=Path("train.parquet"), out=Path("cot"))).run(progress)
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from terrella.core.chat import END_THINK
from terrella.core.files import locked, write_atomic
from terrella.core.integrity import LISTING, write_listing
from terrella.core.protocols import Progress
from terrella.core.run_folder import check_spec
from terrella.data.chat_rows import (
    ChatRow,
    Columns,
    chat_files,
    columns_read,
    count_rows,
    read_chat_rows,
)
from terrella.pipelines.import_data.base import Importer, Summary, size_text

ROWS_PER_FILE = 500
NAME = re.compile(r"chats-(\d{9})-(\d{9})\.parquet")
MESSAGE = pa.struct({"role": pa.string(), "content": pa.string(), "train": pa.bool_()})
SCHEMA = pa.schema({"messages": pa.list_(MESSAGE)})


@dataclass(frozen=True)
class Found:
    """What the rows hold."""

    rows: int = 0
    learnt: int = 0
    thoughts: int = 0
    longest: int = 0
    """Characters of the longest row."""

    def plus(self, rows: Iterable[ChatRow]) -> Found:
        found = self
        for row in rows:
            learnt = [message for message in row.messages if message.train]
            size = sum(len(message.content) for message in row.messages)
            found = Found(
                found.rows + 1,
                found.learnt + len(learnt),
                found.thoughts + sum(END_THINK in each.content for each in learnt),
                max(found.longest, size),
            )
        return found


class ImportChats(Importer):
    """Rows with chains of thought, prompts with answers, or chats."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Importer.Config):
        columns: Columns = field(default_factory=Columns)

    config: Config

    def run(self, progress: Progress) -> Summary:
        config = self.config
        files = chat_files(config.source)
        read = columns_read(config.source, config.columns)
        with locked(config.out):
            check_spec(config.out, self.spec(files))
            if not (config.out / LISTING).exists():
                progress.phase("import", count_rows(config.source))
                self._write_rows(progress)
                write_listing(config.out, about={"columns": read})
        found = Found().plus(read_chat_rows(config.out))
        size = sum(path.stat().st_size for path in chat_files(config.out))
        return [
            ("columns", read),
            ("rows", f"{found.rows:,}"),
            ("learnt messages", f"{found.learnt:,}, of which {found.thoughts:,} have a thought"),
            ("longest row", f"{found.longest:,} characters"),
            ("on disk", size_text(size)),
        ]

    def _write_rows(self, progress: Progress) -> None:
        done = _written(self.config.out)
        progress.advance(done)
        rows = itertools.islice(read_chat_rows(self.config.source, self.config.columns), done, None)
        for chunk in _chunks(rows):
            path = self.config.out / f"chats-{done:09d}-{done + len(chunk):09d}.parquet"
            write_atomic(path, _encoded(chunk))
            done += len(chunk)
            progress.advance(done)


def _written(folder: Path) -> int:
    """Rows that an earlier import wrote."""
    ends = [int(match[2]) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return max(ends, default=0)


def _chunks(rows: Iterator[ChatRow]) -> Iterator[Sequence[ChatRow]]:
    while chunk := list(itertools.islice(rows, ROWS_PER_FILE)):
        yield chunk


def _encoded(rows: Sequence[ChatRow]) -> bytes:
    messages = [
        [{"role": each.role, "content": each.content, "train": each.train} for each in row.messages]
        for row in rows
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"messages": messages}, schema=SCHEMA), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())
