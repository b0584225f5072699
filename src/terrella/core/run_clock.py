"""Wall time of a run over all its sessions, kept in `sessions.log` with a line for each.

A session that was killed counts up to the last half minute in which it showed progress.
    clock = RunClock(folder)
    progress = TimedProgress(progress, clock)  # keeps the file up to date
    clock.seconds()
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from terrella.core.files import write_atomic
from terrella.core.protocols import Progress

SESSIONS = "sessions.log"
SAVE_SECONDS = 30.0


class RunClock:
    """Counts from its creation, on top of the sessions before."""

    def __init__(
        self, folder: Path, *, writes: bool = True, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Only one of several ranks `writes`."""
        self.path = folder / SESSIONS
        self.writes = writes
        self._now = now
        text = self.path.read_text("utf-8", "replace") if self.path.is_file() else ""
        self._lines = text.splitlines()
        self._earlier = sum(map(_seconds_of, self._lines))
        self._began = self._saved = now()
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self._lock = threading.Lock()

    def seconds(self) -> float:
        """Seconds of this session and of those before it."""
        return self._earlier + self._now() - self._began

    def tick(self) -> None:
        """Save the time if the last save is half a minute old."""
        with self._lock:
            if self._now() - self._saved >= SAVE_SECONDS:
                self._save()

    def save(self) -> None:
        """Write a line for this session below those of the sessions before."""
        with self._lock:
            self._save()

    def _save(self) -> None:
        self._saved = self._now()
        if self.writes:
            line = f"{self._date} {self._saved - self._began:.1f} s"
            write_atomic(self.path, "\n".join([*self._lines, line, ""]).encode())


def _seconds_of(line: str) -> float:
    """The seconds in a line; 0 in one that says none, since the file decides nothing."""
    try:
        seconds = float(line.split()[1])
    except (IndexError, ValueError):
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


@dataclass(frozen=True)
class TimedProgress:
    """A display that keeps a run's clock up to date."""

    display: Progress
    clock: RunClock

    def phase(self, name: str, total: int) -> None:
        self.display.phase(name, total)

    def advance(self, done: int, **metrics: float) -> None:
        self.clock.tick()
        self.display.advance(done, **metrics)

    def note(self, text: str) -> None:
        self.display.note(text)
