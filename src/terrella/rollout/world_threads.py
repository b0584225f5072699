"""Threads in which worlds answer. A thread that hangs is left behind, and a new one replaces it.

A call waits in a queue until a thread is free; its time limit counts from when it begins.
    threads = WorldThreads(2)
    result = await threads.run(lambda: world.step("Up"), timeout=30.0)
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class HungCallError(Exception):
    """A call did not return within its time limit. Its thread cannot be stopped."""


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    call: Callable[[], T]
    started: Future[None] = field(default_factory=Future)
    result: Future[T] = field(default_factory=Future)
    left_behind: bool = False

    def carry_out(self) -> None:
        """Run the call, unless the caller has left the queue."""
        if not self.started.set_running_or_notify_cancel():
            return
        self.result.set_running_or_notify_cancel()  # from now on it cannot be cancelled
        self.started.set_result(None)
        try:
            self.result.set_result(self.call())
        except BaseException as error:  # noqa: BLE001  the caller gets it
            self.result.set_exception(error)


class WorldThreads:
    """A fixed number of threads that answer. They do not keep a process from ending."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        for _ in range(count):
            self._add_thread()

    async def run(self, call: Callable[[], T], *, timeout: float) -> T:
        """The result of the call, or `HungCallError`. Callers may be in different event loops."""
        job = _Job(call)
        self.jobs.put(job)
        await asyncio.wrap_future(job.started)
        result = asyncio.wrap_future(job.result)
        try:
            await asyncio.wait([result], timeout=timeout)
            if self._is_hung(job):
                raise HungCallError
            return await result
        finally:
            result.cancel()  # if it comes later, nobody waits for it

    def close(self) -> None:
        """End the threads, each after the call it is in; calls that wait are cancelled."""
        with contextlib.suppress(queue.Empty):
            while job := self.jobs.get_nowait():
                job.started.cancel()
        for _ in range(self.count):
            self.jobs.put(None)

    def _is_hung(self, job: _Job[Any]) -> bool:
        """Whether the call has not returned; its thread is replaced then."""
        with self.lock:
            if job.result.done():
                return False
            job.left_behind = True
        self._add_thread()
        return True

    def _add_thread(self) -> None:
        threading.Thread(target=self._serve, name="world", daemon=True).start()

    def _serve(self) -> None:
        while job := self.jobs.get():
            job.carry_out()
            with self.lock:
                if job.left_behind:  # another thread has taken this one's place
                    return
