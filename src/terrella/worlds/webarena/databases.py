"""Queries of task files on a site's database: read-only, and bounded in time and size.

rows = query_rows(arena.live(site), "SELECT name FROM products WHERE price < :most", {"most": 9})
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from terrella.core.errors import WorldError

SECONDS = 10.0
"""The longest query of the mini-arena takes milliseconds."""
STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock: about a millisecond."""
MAX_SIZE = 2**24
"""Characters or bytes of all rows together, and of one value."""


def query_rows(file: Path, query: str, values: Mapping[str, Any] = {}) -> list[tuple[Any, ...]]:
    """The rows of one statement. WorldError for one that never ends or returns too much."""
    end = time.monotonic() + SECONDS
    database = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=SECONDS)
    with contextlib.closing(database):
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_SIZE)
        database.set_progress_handler(lambda: time.monotonic() > end, STEPS)
        try:
            return _read(database.execute(query, dict(values)), query)
        except sqlite3.OperationalError as error:
            if time.monotonic() <= end:
                raise
            raise _refused(query, f"took more than {SECONDS:g} s") from error


def _read(rows: sqlite3.Cursor, query: str) -> list[tuple[Any, ...]]:
    read: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        size += sum(len(value) if isinstance(value, str | bytes) else 1 for value in row)
        if size > MAX_SIZE:
            raise _refused(query, f"returns more than {MAX_SIZE:,} characters")
        read.append(row)
    return read


def _refused(query: str, what: str) -> WorldError:
    return WorldError("webarena", f"the query {query[:80]!r} of a task {what}", "correct the task")
