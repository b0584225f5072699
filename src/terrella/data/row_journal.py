"""Rows of an evaluation: appended one by one while it runs, compressed when it is done.

A row is written when its episode ends, so a kill costs only what was being played. A line that was
cut off by a kill is dropped; any other damage is refused. The finished file is sorted by key, so
that it is the same file whether or not the run was killed.
    with RowJournal(folder, "sokoban", key=("seed", "member")) as journal:
        journal.append({"seed": 0, "member": 3, "value": 1.0})
        journal.finish()
    rows = read_rows(folder / "sokoban.jsonl.gz")
"""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, cast

from terrella.core.errors import StoreError
from terrella.core.files import open_unlinked, sync_file
from terrella.core.integrity import HASH_SUFFIX, read_hashed, write_hashed
from terrella.core.untrusted import MAX_FILE_BYTES, parse_json, unpack_gzip

SUFFIX, UNFINISHED = ".jsonl.gz", ".rows"
SYNC_SECONDS = 1.0
"""How much work a machine that loses power may cost."""

Key = tuple[int, ...]
Row = dict[str, Any]


def file_name(name: str) -> str:
    """The name of a world as part of a file name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)


class RowJournal:
    """The rows of one world; use it as a context manager."""

    def __init__(self, folder: Path, name: str, *, key: Sequence[str]) -> None:
        """`key` names the columns that tell rows apart."""
        folder.mkdir(parents=True, exist_ok=True)
        self.whole = folder / f"{file_name(name)}{SUFFIX}"
        self.unfinished = folder / f"{file_name(name)}{UNFINISHED}"
        self.columns = tuple(key)
        self.rows: dict[Key, Row] = {}
        """What is known so far, by key. A row that is appended again replaces the older one."""
        self._synced = time.monotonic()
        if self.whole.exists():
            self._add(read_rows(self.whole))
        if self.unfinished.exists():
            self._add(self._read_unfinished())
        self._file = open_unlinked(self.unfinished, "ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, row: Row) -> None:
        """Keep a row; it survives the death of this process from now on."""
        text = json.dumps(row, allow_nan=False).encode()
        self._file.write(b"%08x " % zlib.crc32(text) + text + b"\n")
        self._file.flush()
        self._add([row])
        if time.monotonic() - self._synced > SYNC_SECONDS:
            sync_file(self.unfinished)
            self._synced = time.monotonic()

    def finish(self) -> Path:
        """Write all rows in the order of their keys, compressed and with a hash beside them."""
        lines = (json.dumps(row, allow_nan=False) + "\n" for _, row in sorted(self.rows.items()))
        write_hashed(self.whole, gzip.compress("".join(lines).encode(), 6, mtime=0))
        self._file.close()
        self.unfinished.unlink()
        return self.whole

    def discard(self) -> None:
        """Remove the rows that are not finished."""
        self._file.close()
        self.unfinished.unlink()

    def _add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows[tuple(row[column] for column in self.columns)] = row

    def _read_unfinished(self) -> list[Row]:
        data = self.unfinished.read_bytes()
        whole, _, cut_off = data.rpartition(b"\n")
        if cut_off:
            # Cut it off for good: the next row would otherwise continue this line.
            with open_unlinked(self.unfinished, "r+b") as file:
                file.truncate(len(data) - len(cut_off))
        lines = whole.split(b"\n") if whole else []
        return [self._checked(line, number) for number, line in enumerate(lines, start=1)]

    def _checked(self, line: bytes, number: int) -> Row:
        check, _, text = line.partition(b" ")
        where = f"{self.unfinished}, line {number}"
        if check != b"%08x" % zlib.crc32(text):
            raise StoreError(
                where,
                "is damaged: it differs from its checksum",
                "delete the line and run the same command again: the episode is played again",
            )
        return cast(Row, parse_json(text, where))


def read_rows(path: Path) -> list[Row]:
    """The rows of a finished file, which is checked against its hash; a bomb is refused."""
    text = unpack_gzip(read_hashed(path), str(path), MAX_FILE_BYTES)
    return [parse_json(line, str(path)) for line in text.split(b"\n") if line.strip()]


def row_files(folder: Path) -> list[Path]:
    """The finished files in a folder, by name."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.suffix != HASH_SUFFIX)
