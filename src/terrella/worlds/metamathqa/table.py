"""Load questions and answers from a MetaMathQA file, or from the sample beside this module.

A file is a JSON list or JSON lines. Each row has `query`, `response` (ending in "The answer is: X")
and `original_question`.
    table = load_table(Path("MetaMathQA-395K.json"))
    table.answer_of(table.questions[0])
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.errors import StoreError, WorldError
from terrella.core.untrusted import MAX_FILE_BYTES, parse_json, read_json
from terrella.worlds.metamathqa.answers import final_answer, same_answer

SAMPLE = Path(__file__).with_name("sample.jsonl")
REMEDY = (
    "download MetaMathQA-395K.json (Hugging Face: meta-math/MetaMathQA) "
    "and give its path: --set path=FILE"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, its answer, and the question it was derived from."""

    question: str
    answer: str
    original: str


@dataclass(frozen=True)
class ProblemTable:
    """Problems by question.

    When a question appears twice (other reasoning, same answer), the first one is used.
    """

    source: str
    problems: dict[str, Problem]
    skipped: int
    """Number of rows left out: repeated questions, and responses without a usable final answer."""

    @functools.cached_property
    def questions(self) -> tuple[str, ...]:
        """All questions, in the order of the file."""
        return tuple(self.problems)

    def answer_of(self, question: str) -> str:
        """The true answer. Nothing that a model sees is derived from it."""
        return self.problems[question].answer

    def original_of(self, question: str) -> str:
        """The question that this one rephrases, with normalised white space."""
        return " ".join(self.problems[question].original.split())


def load_table(path: Path | None) -> ProblemTable:
    """Load a file, or the sample if there is no path."""
    file = SAMPLE if path is None else path
    try:
        status = file.stat()
    except OSError as error:
        raise WorldError("metamathqa", f"cannot read {file}: {error.strerror}", REMEDY) from error
    source = "made sample" if path is None else str(file)
    return _load(file, source, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=2)
def _load(path: Path, source: str, modified: int, size: int) -> ProblemTable:
    """Modification time and size are part of the cache key: a changed file is read again."""
    problems: dict[str, Problem] = {}
    count = 0
    try:
        for count, row in enumerate(_read_rows(path), start=1):
            problem = _read_problem(row, f"{path}, row {count}")
            if problem is not None:
                problems.setdefault(problem.question, problem)
    except (StoreError, OSError, ValueError) as error:
        raise WorldError(
            "metamathqa", f"{path} cannot be read after row {count}: {error}", REMEDY
        ) from error
    if not problems:
        raise WorldError(
            "metamathqa", f"{path} has no row with a question and a final answer", REMEDY
        )
    return ProblemTable(source, problems, skipped=count - len(problems))


def _read_rows(path: Path) -> Iterator[Any]:
    """Yield the items of a JSON list, or one item per line."""
    with path.open(encoding="utf-8") as file:
        is_list = file.read(4096).lstrip().startswith("[")
        file.seek(0)
        if is_list:
            yield from read_json(path, REMEDY, MAX_FILE_BYTES)
        else:
            yield from (parse_json(line, "a line", REMEDY) for line in file if line.strip())


def _read_problem(row: Any, where: str) -> Problem | None:
    """The problem, or None if it has no final answer; an unknown layout is an error."""
    fields = row if isinstance(row, dict) else {}
    query = fields.get("query")
    response = fields.get("response")
    original = fields.get("original_question")
    if not (isinstance(query, str) and isinstance(response, str) and isinstance(original, str)):
        raise WorldError(
            "metamathqa",
            f"{where}: query, response and original_question must be texts",
            REMEDY,
        )
    answer = final_answer(response) if "the answer is" in response.lower() else ""
    if not same_answer(answer, answer) or not query.strip():
        return None
    # A lone surrogate cannot be hashed or stored: encoding raises a ValueError here.
    (query + original).encode()
    return Problem(query, answer, original)
