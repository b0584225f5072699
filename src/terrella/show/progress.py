"""How far a long command is: a live display in a terminal, a plain line every few seconds elsewhere.

`make_progress` chooses; both implement `core.protocols.Progress`. `advance` is told how much is done *so far*; the
first call of a phase sets the starting point, so that a resumed run shows its own rate and not the dead run's.
    with make_progress() as progress:
        progress.phase("collect", total=100_000); progress.advance(0); progress.advance(2_000, success=0.4)
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from terrella.core import protocols

logger = logging.getLogger("terrella")

Clock = Callable[[], float]


@dataclass(slots=True)
class Pace:
    """Units per second and time left of one phase, counted from the first `advance`."""

    total: int
    began: float
    start: int | None = None
    """What was already done at the first call; unknown before it."""

    def rate(self, done: int, now: float) -> float:
        """Units per second in this run; 0 before anything was seen."""
        return (done - (self.start or 0)) / max(now - self.began, 1e-9) if self.start is not None else 0.0

    def describe(self, done: int, now: float) -> str:
        """`1,234/s, 12 s left`, as far as it is known."""
        rate = self.rate(done, now)
        if rate <= 0:
            return ""
        left = max(self.total - done, 0) / rate
        return (f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s") + (f", {seconds(left)} left" if left else "")


def seconds(duration: float) -> str:
    """A duration for people: `12 s`, `3:20 min`, `2:05 h`."""
    whole = round(duration)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def figures_text(figures: dict[str, float]) -> str:
    """`success=0.412 masked=3`: whole numbers without a point, others with three digits."""
    return " ".join(
        f"{name}={value:,.0f}" if float(value).is_integer() else f"{name}={value:.3g}"
        for name, value in figures.items()
    )


class _Paced:
    """What both displays share: the phase, its pace, and the start of the count."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock, self.name, self.pace = clock, "", Pace(0, 0.0)

    def phase(self, name: str, total: int) -> None:
        """Begin a phase of `total` units."""
        self.name, self.pace = name, Pace(total, self.clock())

    def _describe(self, done: int) -> str:
        if self.pace.start is None:
            self.pace.start, self.pace.began = done, self.clock()
        return self.pace.describe(done, self.clock())


class PlainProgress(_Paced):
    """One log line every few seconds, and one when a phase begins and ends."""

    def __init__(self, every: float = 5.0, clock: Clock = time.monotonic) -> None:
        """`every` is the least time between two lines."""
        super().__init__(clock)
        self.every, self._shown = every, float("-inf")

    def phase(self, name: str, total: int) -> None:
        """Begin a phase of `total` units."""
        super().phase(name, total)
        self._shown = float("-inf")

    def advance(self, done: int, **figures: float) -> None:
        """Say how many units are done so far; a line appears if the last one is old enough, or at the end."""
        described, now = self._describe(done), self.clock()
        if now - self._shown < self.every and done < self.pace.total:
            return
        self._shown = now
        share = f"{done:,} of {self.pace.total:,} ({min(done / max(self.pace.total, 1), 1):.0%})"
        logger.info("  ".join(filter(None, (self.name, share, described, figures_text(figures)))))


class LiveProgress(_Paced):
    """A bar that moves, with the phase, the rate, the time left and the figures."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        """Nothing is drawn before the first phase."""
        super().__init__(clock)
        self.display = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), TaskProgressColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"), TextColumn("{task.fields[pace]}"),
            TextColumn("[cyan]{task.fields[figures]}"), console=console,
        )  # fmt: skip
        self._task: TaskID | None = None

    def phase(self, name: str, total: int) -> None:
        """Begin a phase: a new bar below the finished ones."""
        super().phase(name, total)
        self.display.start()
        self._task = self.display.add_task(name, total=total, pace="", figures="")

    def advance(self, done: int, **figures: float) -> None:
        """Move the bar to what is done so far."""
        if self._task is None:
            raise ValueError("advance before the first phase")
        self.display.update(self._task, completed=done, pace=self._describe(done), figures=figures_text(figures))


class SilentProgress:
    """Shows nothing: for tests and for use as a library."""

    def phase(self, name: str, total: int) -> None:
        """Ignore it."""

    def advance(self, done: int, **figures: float) -> None:
        """Ignore it."""


@contextlib.contextmanager
def make_progress(console: Console | None = None) -> Iterator[protocols.Progress]:
    """The display that fits where standard error goes; the terminal is left clean even after an exception."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        _let_lines_through()
        yield PlainProgress()
        return
    live = LiveProgress(console)
    try:
        yield live
    finally:
        live.display.stop()


def _let_lines_through() -> None:
    """Without any handler Python drops lines below a warning: give our logger one, unless the program has its own."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def show_figures(title: str, rows: Sequence[tuple[str, str]], console: Console | None = None) -> None:
    """A small table on standard output: framed in a terminal, `name: value` lines elsewhere."""
    console = console or Console()
    if not console.is_terminal:
        for name, value in rows:
            console.print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)
        return
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows:
        table.add_row(Text(name), Text(value))  # not markup: a value may hold brackets
    console.print(table)
