"""Attempts that have ended, kept one by one while others are still played.

A kill costs what was being played: the same command plays only what is missing. An attempt that
broke is not kept, so it is played again. A world that is down for good ends the run by name, and
not as a phase of broken attempts.
    play_once(path, lambda journal: player.play(tasks, split=split, journal=journal), patience=20)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from terrella.core.config import record_from_json
from terrella.core.errors import WorldError
from terrella.core.instances import plain
from terrella.data.attempts import Attempt, PracticeTask, write_attempts
from terrella.data.row_journal import UNFINISHED, RowJournal

LEAST_PATIENCE = 20


class AttemptJournal:
    """The attempts at a list of tasks so far; use it as a context manager."""

    def __init__(self, path: Path, *, patience: int) -> None:
        """Rows are kept beside `path`, until `discard`.

        So many broken attempts in a row end the run; at least `LEAST_PATIENCE`.
        """
        self.patience = max(patience, LEAST_PATIENCE)
        self._rows = RowJournal(path.parent, path.stem, key=("index",))
        self._broken = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.__exit__(*error)

    def known(self, tasks: Sequence[PracticeTask]) -> dict[int, Attempt]:
        """What was kept, by the place of its task; attempts at other tasks are left out."""
        rows = self._rows.rows.values()
        kept = {row["index"]: record_from_json(Attempt, row["attempt"]) for row in rows}
        return {
            index: attempt
            for index, attempt in sorted(kept.items())
            if index < len(tasks) and attempt.task == tasks[index]
        }

    def keep(self, index: int, attempt: Attempt) -> None:
        """Keep an attempt that has ended, unless it broke."""
        if not attempt.is_broken:
            self._broken = 0
            self._rows.append({"index": index, "attempt": plain(attempt)})
            return
        self._broken += 1
        if self._broken >= self.patience:
            raise _broke(attempt, f"broke {self._broken} attempts in a row")

    def discard(self) -> None:
        """Remove the rows: they are kept elsewhere now."""
        self._rows.discard()


def play_once(
    path: Path, play: Callable[[AttemptJournal], list[Attempt]], *, patience: int
) -> None:
    """Write what `play` returns, unless it is there; only what is missing is played.

    Attempts that all broke are refused: there is nothing to learn from them.
    """
    if path.exists():
        path.with_suffix(UNFINISHED).unlink(missing_ok=True)  # killed just before `discard`
        return
    with AttemptJournal(path, patience=patience) as journal:
        attempts = play(journal)
        if attempts and all(attempt.is_broken for attempt in attempts):
            raise _broke(attempts[-1], f"broke all of {len(attempts)} attempts")
        write_attempts(path, attempts)
        journal.discard()


def _broke(last: Attempt, what: str) -> WorldError:
    return WorldError(
        last.task.family,
        f"{what}, the last one with {last.stop}: the log says why",
        "mend it and run the same command again: attempts that ended are kept",
    )
