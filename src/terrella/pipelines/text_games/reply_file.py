"""A file of records that is written as they arrive: one JSON object per line.

A line that was cut off when the process was killed is dropped when the file is opened again.
    with ReplyFile(path, TeacherReply) as file: file.add(reply)
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from terrella.core.config import record_from_json
from terrella.core.files import read_json_lines

Row = TypeVar("Row")


class ReplyFile(Generic[Row]):
    """Rows of one type, in memory and on disk. Callers see to it that one thread adds at a time."""

    def __init__(self, path: Path, row_type: type[Row]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        _drop_torn_line(path)
        self.rows: list[Row] = [record_from_json(row_type, row) for row in read_json_lines(path)]

    def __enter__(self) -> Self:
        self._file = self.path.open("ab", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, row: Row) -> None:
        """Append a row; a kill after this call cannot lose it."""
        fields: Any = row
        self._file.write((json.dumps(dataclasses.asdict(fields)) + "\n").encode())
        self.rows.append(row)


def _drop_torn_line(path: Path) -> None:
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
