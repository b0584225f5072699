"""The watchdog reports a run that hangs within seconds, with the likely culprit.

A thread knows the phase and receives heartbeats (a pass of the sampler, an answer of a world, a
trained pack). When they stop, it logs the rank, the phase and the worlds that have not answered,
and writes all stacks to stderr.
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

from terrella.core.tokens import Task
from terrella.core.types import Episode, Situation, Stop
from terrella.rollout.env_pool import EnvWorker
from terrella.rollout.session import StepResult

logger = logging.getLogger("terrella")
COMPUTING = ("train", "sync", "save")
"""Phases without worlds: the time between two heartbeats grows with the model."""
PATIENCE = 10
"""How many times the limit a phase of COMPUTING may be silent."""


@dataclass(frozen=True, slots=True)
class Hang:
    """A report of the watchdog."""

    rank: int
    phase: str
    silent: float
    """Seconds since the last heartbeat."""
    worlds: tuple[tuple[str, float], ...]
    """Worlds that owe an answer, with their waiting time in seconds; longest first."""

    def __str__(self) -> str:
        named = (
            ", ".join(f"{name} ({seconds:.1f} s)" for name, seconds in self.worlds[:10]) or "none"
        )
        more = f" and {len(self.worlds) - 10} more" if len(self.worlds) > 10 else ""
        where = f"rank {self.rank} hangs in {self.phase}: {self.silent:.1f} s without a heartbeat"
        return f"{where}; open worlds: {named}{more}"


class Watchdog:
    """Watches one process. Cheap: a heartbeat is one assignment."""

    def __init__(
        self,
        *,
        limit: float = 30.0,
        rank: int = 0,
        on_hang: Callable[[Hang], None] | None = None,
        stacks: TextIO | None = None,
    ) -> None:
        """`on_hang` is called after the log, for example `abort`. `stacks` defaults to stderr."""
        self.limit = limit
        self.rank = rank
        self.on_hang = on_hang
        self.stacks = stacks
        self.hangs: list[Hang] = []
        self._phase = "idle"
        self._last = time.monotonic()
        self._open: dict[int, tuple[str, float]] = {}
        self._tickets = iter(range(2**62))
        self._reported = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._over.clear()
        self.beat()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def beat(self) -> None:
        """A heartbeat: something made progress."""
        self._last = time.monotonic()
        self._reported = False

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The current phase: generate, train, sync or save. Outside of phases nothing hangs."""
        before, self._phase = self._phase, name
        self.beat()
        try:
            yield
        finally:
            self._phase = before
            self.beat()

    @contextlib.contextmanager
    def world(self, name: str) -> Iterator[None]:
        """Inside this context the world owes an answer."""
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
            limit = self.limit * (PATIENCE if self._phase in COMPUTING else 1)
            if self._phase != "idle" and silent > limit and not self._reported:
                self._reported = True  # once per silence
                self._report(silent)

    def _report(self, silent: float) -> None:
        now = time.monotonic()
        # A copy in one call: the event loop opens and closes worlds meanwhile.
        waiting = [(name, now - since) for name, since in list(self._open.values())]
        hang = Hang(
            self.rank, self._phase, silent, tuple(sorted(waiting, key=lambda world: -world[1]))
        )
        self.hangs.append(hang)
        logger.error("%s", hang)
        faulthandler.dump_traceback(self.stacks or sys.__stderr__ or 2, all_threads=True)
        if self.on_hang is not None:
            self.on_hang(hang)


class WatchedEnvWorker:
    """A worker that tells the watchdog while its world owes an answer."""

    def __init__(self, worker: EnvWorker, watchdog: Watchdog, name: str) -> None:
        """`name` is the world's name in the log."""
        self.worker = worker
        self.watchdog = watchdog
        self.name = name

    async def start(self, task: Task, member: int) -> Situation:
        with self.watchdog.world(f"{self.name}: start"):
            return await self.worker.start(task, member)

    async def act(self, action: str) -> StepResult:
        with self.watchdog.world(f"{self.name}: act {action[:40]!r}"):
            return await self.worker.act(action)

    async def finish(self, stop: Stop) -> Episode:
        """The record."""
        with self.watchdog.world(f"{self.name}: finish"):
            return await self.worker.finish(stop)


def abort(hang: Hang) -> None:
    """Ends the process, so that a supervisor restarts it from its checkpoint.

    For runs nobody watches.
    """
    logger.critical("watchdog ends rank %d", hang.rank)
    os._exit(124)
