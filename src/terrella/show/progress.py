"""Progress of long commands: a live display in a terminal, a log line now and then elsewhere.

`make_progress` chooses; both implement `core.protocols.Progress`. `advance` takes the number of
units done *so far*. The first call of a phase sets the starting point, so a resumed run shows its
own rate and not that of the run that was killed.
    with make_progress() as progress:
        progress.phase("collect", total=100_000)
        progress.advance(0)
        progress.advance(2_000, success=0.4)
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from terrella.core import protocols
from terrella.core.run_folder import rank

logger = logging.getLogger("terrella")

Clock = Callable[[], float]


@dataclass(slots=True)
class Pace:
    """Rate and remaining time of one phase, counted from the first `advance`."""

    total: int
    began: float
    start: int | None = None
    """Units that were already done at the first call; None before it."""

    def rate(self, done: int, now: float) -> float:
        """Units per second in this run; 0 before the first call of `advance`."""
        if self.start is None:
            return 0.0
        return (done - self.start) / max(now - self.began, 1e-9)

    def describe(self, done: int, now: float) -> str:
        """`1,234/s, 12 s left`, or nothing while the rate is unknown."""
        rate = self.rate(done, now)
        if rate <= 0:
            return ""
        described = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        left = max(self.total - done, 0) / rate
        return f"{described}, {duration_text(left)} left" if left else described


def duration_text(duration: float) -> str:
    """Format a duration in seconds: `12 s`, `3:20 min`, `2:05 h`."""
    whole = round(duration)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


HEADLINE = "reward"
"""The metric that should rise: it is shown first, with where it began and what it must beat."""
BASELINE = "baseline/"
"""Prefix of metrics that are shown beside the headline: `baseline/random`."""


def metrics_text(metrics: Mapping[str, float], first: float | None = None) -> str:
    """Format metrics as `reward 0.25 -> 0.81 (random 0.30)  masked=3`.

    `first` is the headline's first value in this phase. Of the others, integers are shown in full
    and the rest with three digits.
    """
    parts = []
    if HEADLINE in metrics:
        start = "" if first is None else f"{first:.2f} -> "
        beside = ", ".join(
            f"{name.removeprefix(BASELINE)} {value:.2f}"
            for name, value in metrics.items()
            if name.startswith(BASELINE)
        )
        parts.append(f"{HEADLINE} {start}{metrics[HEADLINE]:.2f}" + f" ({beside})" * bool(beside))
    others = " ".join(
        f"{name}={value:,.0f}" if float(value).is_integer() else f"{name}={value:.3g}"
        for name, value in metrics.items()
        if name != HEADLINE and not name.startswith(BASELINE)
    )
    return "  ".join(filter(None, (*parts, others)))


MOST_BARS = 8
"""Older ones go: what does not fit into a terminal is cut at its end, where the current bar is."""


@dataclass(frozen=True)
class BesideBaselines:
    """A display that shows these baselines beside the reward."""

    display: protocols.Progress
    baselines: Mapping[str, float]

    def phase(self, name: str, total: int) -> None:
        self.display.phase(name, total)

    def advance(self, done: int, **metrics: float) -> None:
        if HEADLINE in metrics:
            metrics |= {f"{BASELINE}{name}": value for name, value in self.baselines.items()}
        self.display.advance(done, **metrics)

    def note(self, text: str) -> None:
        self.display.note(text)


class _PacedProgress:
    """Base of both displays: the current phase and its pace."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.name = ""
        self.pace = Pace(0, 0.0)
        self.first: float | None = None

    def phase(self, name: str, total: int) -> None:
        self.name = name
        self.pace = Pace(total, self.clock())
        self.first = None

    def _describe_metrics(self, metrics: Mapping[str, float]) -> str:
        shown = metrics_text(metrics, self.first)
        if self.first is None:
            self.first = metrics.get(HEADLINE)
        return shown

    def _describe_pace(self, done: int) -> str:
        if self.pace.start is None:
            self.pace.start = done
            self.pace.began = self.clock()
        return self.pace.describe(done, self.clock())


class PlainProgress(_PacedProgress):
    """Writes a log line every few seconds, and one when a phase begins and ends."""

    def __init__(self, every: float = 5.0, clock: Clock = time.monotonic) -> None:
        """`every` is the minimum time between two lines, in seconds."""
        super().__init__(clock)
        self.every = every
        self._last_line = float("-inf")

    def phase(self, name: str, total: int) -> None:
        super().phase(name, total)
        self._last_line = float("-inf")

    def advance(self, done: int, **metrics: float) -> None:
        """Write a line if the last one is old enough, or if the phase is complete."""
        pace = self._describe_pace(done)
        told = self._describe_metrics(metrics)
        now = self.clock()
        total = self.pace.total
        if now - self._last_line < self.every and done < total:
            return
        self._last_line = now
        share = f"{done:,} of {total:,} ({min(done / max(total, 1), 1):.0%})"
        logger.info("  ".join(filter(None, (self.name, share, pace, told))))

    def note(self, text: str) -> None:
        logger.info(text)


class LiveProgress(_PacedProgress):
    """Draws a moving bar with the phase, the rate, the remaining time and the metrics."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self.display = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[pace]}"),
            TextColumn("[cyan]{task.fields[metrics]}"),
            console=console,
        )
        self._task: TaskID | None = None

    def phase(self, name: str, total: int) -> None:
        """Begin a phase with a new bar below the last finished ones."""
        super().phase(name, total)
        self.display.start()
        for finished in self.display.task_ids[: 1 - MOST_BARS]:
            self.display.remove_task(finished)
        self._task = self.display.add_task(name, total=total, pace="", metrics="")

    def advance(self, done: int, **metrics: float) -> None:
        if self._task is None:
            raise ValueError("advance was called before the first phase")
        self.display.update(
            self._task,
            completed=done,
            pace=self._describe_pace(done),
            metrics=self._describe_metrics(metrics),
        )

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self.display.console.print(Text(text, style="dim"))


class SilentProgress:
    """Shows nothing: for tests and for use as a library."""

    def phase(self, name: str, total: int) -> None: ...

    def advance(self, done: int, **metrics: float) -> None: ...

    def note(self, text: str) -> None: ...


@contextlib.contextmanager
def make_progress(console: Console | None = None) -> Iterator[protocols.Progress]:
    """Yield the display that fits where standard error goes; of several ranks only the first shows.

    The terminal is restored even after an exception.
    """
    if rank() > 0:
        yield SilentProgress()
        return
    console = console or Console(stderr=True)
    if not console.is_terminal:
        _configure_logger()
        yield PlainProgress()
        return
    live = LiveProgress(console)
    try:
        yield live
    finally:
        live.display.stop()


@contextlib.contextmanager
def show_lines(title: str, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is done: one line in a terminal, log lines elsewhere."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        _configure_logger()
        yield logger.info
        return
    with console.status(Text(title)) as status:
        yield lambda line: status.update(Text(line))


def _configure_logger() -> None:
    """Add a handler to our logger, unless the program has configured one.

    Without any handler Python drops everything below a warning.
    """
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def show_metrics(
    title: str, rows: Sequence[tuple[str, str]], console: Console | None = None
) -> None:
    """Print a small table: framed in a terminal, `name: value` lines elsewhere; rank 0 prints."""
    console = console or Console(quiet=rank() > 0)
    if not console.is_terminal:
        for name, value in rows:
            console.print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)
        return
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows:
        table.add_row(Text(name), Text(value))  # Text, because a value may contain [brackets]
    console.print(table)
