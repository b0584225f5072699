"""The questions and answers of a MetaMathQA file, or of the made sample that ships beside this module.

A file is a JSON list or JSON lines with `query`, `response` (ending in "The answer is: X") and `original_question`.
    table = load_table(Path("MetaMathQA-395K.json")); table.answer_of(table.questions[0])
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.errors import WorldError
from terrella.worlds.metamathqa.answers import final_answer, same_answer

SAMPLE = Path(__file__).with_name("sample.jsonl")
REMEDY = "get MetaMathQA-395K.json (Hugging Face: meta-math/MetaMathQA) and give its place: --set path=FILE"


@dataclass(frozen=True, slots=True)
class Row:
    """A question, its answer, and the question it was made from."""

    question: str
    answer: str
    original: str


@dataclass(frozen=True)
class Table:
    """Rows by question. Where a question comes twice (other reasoning, same answer) the first one is kept."""

    source: str
    rows: dict[str, Row]
    skipped: int
    """Rows left out: a question that was there already, or a response without a final answer that can be compared."""

    @functools.cached_property
    def questions(self) -> tuple[str, ...]:
        """All questions, in the order of the file."""
        return tuple(self.rows)

    def answer_of(self, question: str) -> str:
        """The true answer. Nothing that a model sees is made from it."""
        return self.rows[question].answer

    def original_of(self, question: str) -> str:
        """The question that this one rephrases, with its white space made even."""
        return " ".join(self.rows[question].original.split())


def load_table(path: Path | None) -> Table:
    """The table of a file; without a path, of the made sample."""
    place = SAMPLE if path is None else path
    try:
        status = place.stat()
    except OSError as error:
        raise WorldError("metamathqa", f"cannot read {place}: {error.strerror}", REMEDY) from error
    return _load(place, "made sample" if path is None else str(place), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=2)
def _load(place: Path, source: str, changed: int, size: int) -> Table:
    """Time and size of the file are part of the question: a file that changed is read again."""
    rows: dict[str, Row] = {}
    count = 0
    try:
        for count, item in enumerate(_items(place), start=1):
            row = _row(item, f"{place}, row {count}")
            if row is not None:
                rows.setdefault(row.question, row)
    except (OSError, ValueError, RecursionError) as error:
        raise WorldError("metamathqa", f"{place} cannot be read after row {count}: {error}", REMEDY) from error
    if not rows:
        raise WorldError("metamathqa", f"{place} has no row with a question and a final answer", REMEDY)
    return Table(source, rows, count - len(rows))


def _items(place: Path) -> Iterator[Any]:
    """The items of a JSON list, or one per line."""
    with place.open(encoding="utf-8") as file:
        is_list = file.read(4096).lstrip().startswith("[")
        file.seek(0)
        lines: Iterable[Any] = json.load(file) if is_list else (json.loads(line) for line in file if line.strip())
        yield from lines


def _row(item: Any, where: str) -> Row | None:
    """The row, or None when it has no final answer; a row of another layout is an error."""
    fields = item if isinstance(item, dict) else {}
    query, response, original = (fields.get(name) for name in ("query", "response", "original_question"))
    if not (isinstance(query, str) and isinstance(response, str) and isinstance(original, str)):
        raise WorldError("metamathqa", f"{where}: no texts query, response and original_question", REMEDY)
    answer = final_answer(response) if "the answer is" in response.lower() else ""
    if not same_answer(answer, answer) or not query.strip():
        return None
    (query + original).encode()  # a lone surrogate cannot be hashed or stored: it fails here, as a ValueError
    return Row(query, answer, original)
