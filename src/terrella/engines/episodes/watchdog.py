"""The hang watchdog: a run that stands still says who holds it up, within seconds, instead of a silent night.

A thread is told the phase and hears heartbeats (a pass of the sampler, an answer of a world, a trained pack). When they
stop, it logs the rank, the phase and the worlds that have not answered, and writes all stacks to the error stream.
    with Watchdog(limit=30, rank=0) as dog, dog.phase("generate"): dog.beat()
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self, TextIO

from terrella.core.protocols import Task
from terrella.core.types import Episode, Situation, Stop
from terrella.engines.episodes.seats import Acted, Seat

logger = logging.getLogger("terrella")


@dataclass(frozen=True, slots=True)
class Hang:
    """What the watchdog saw."""

    rank: int
    phase: str
    silent: float
    """Seconds since the last heartbeat."""
    worlds: tuple[tuple[str, float], ...]
    """Worlds that owe an answer, with the seconds they have been waited for; longest first."""

    def __str__(self) -> str:
        """The line in the log: rank, phase, silence, culprits."""
        named = ", ".join(f"{name} ({seconds:.1f} s)" for name, seconds in self.worlds[:10]) or "none"
        more = f" and {len(self.worlds) - 10} more" if len(self.worlds) > 10 else ""
        where = f"rank {self.rank} hangs in {self.phase}: {self.silent:.1f} s without a heartbeat"
        return f"{where}; open worlds: {named}{more}"


class Watchdog:
    """Watches one process. Cheap: a heartbeat is one assignment."""

    def __init__(
        self, *, limit: float = 30.0, rank: int = 0, on_hang: Callable[[Hang], None] | None = None,
        stacks: TextIO | None = None,
    ) -> None:  # fmt: skip
        """`on_hang` is told after the log; `abort` is one choice. Stacks go to a file, the error stream if none."""
        self.limit, self.rank, self.on_hang, self.stacks = limit, rank, on_hang, stacks
        self.hangs: list[Hang] = []
        self._phase = "idle"
        self._last = time.monotonic()
        self._open: dict[int, tuple[str, float]] = {}
        self._tickets = iter(range(2**62))
        self._reported = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start watching; again after an end is fine."""
        self._over.clear()
        self.beat()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def beat(self) -> None:
        """Something moved."""
        self._last = time.monotonic()
        self._reported = False

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What this process does now: generate, train, sync or save. Outside of phases nothing is a hang."""
        before, self._phase = self._phase, name
        self.beat()
        try:
            yield
        finally:
            self._phase = before
            self.beat()

    @contextlib.contextmanager
    def world(self, name: str) -> Iterator[None]:
        """This world owes an answer."""
        ticket = next(self._tickets)
        self._open[ticket] = (name, time.monotonic())
        try:
            yield
        finally:
            del self._open[ticket]
            self.beat()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self.limit / 4)):
            silent = time.monotonic() - self._last
            if self._phase != "idle" and silent > self.limit and not self._reported:
                self._reported = True  # once per silence
                self._report(silent)

    def _report(self, silent: float) -> None:
        now = time.monotonic()
        # A copy in one call: the event loop opens and closes worlds meanwhile.
        waiting = [(name, now - since) for name, since in list(self._open.values())]
        hang = Hang(self.rank, self._phase, silent, tuple(sorted(waiting, key=lambda world: -world[1])))
        self.hangs.append(hang)
        logger.error("%s", hang)
        faulthandler.dump_traceback(self.stacks or sys.__stderr__ or 2, all_threads=True)
        if self.on_hang is not None:
            self.on_hang(hang)


class WatchedSeat:
    """A seat whose world is known to the watchdog while it owes an answer."""

    def __init__(self, seat: Seat, watchdog: Watchdog, name: str) -> None:
        """`name` is how the log calls this world."""
        self.seat, self.watchdog, self.name = seat, watchdog, name

    async def start(self, task: Task, member: int) -> Situation:
        """Reset."""
        with self.watchdog.world(f"{self.name}: start"):
            return await self.seat.start(task, member)

    async def act(self, action: str) -> Acted:
        """Step."""
        with self.watchdog.world(f"{self.name}: act {action[:40]!r}"):
            return await self.seat.act(action)

    async def finish(self, stop: Stop) -> Episode:
        """The record."""
        with self.watchdog.world(f"{self.name}: finish"):
            return await self.seat.finish(stop)


def abort(hang: Hang) -> None:
    """Ends the process, so that a supervisor restarts it from its checkpoint: for runs nobody watches."""
    logger.critical("watchdog ends rank %d", hang.rank)
    os._exit(124)
