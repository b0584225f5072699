"""Batch queries that arrive close together, so that one forward pass serves many of them.

The sampler batches whatever is there, pass by pass. A query that arrives alone costs a prefill of
its own, and clients that wait for replies come back one after another. So a query waits until as
many queries have arrived as were waiting or running when the last batch started: for a moment if
the model is idle, for at most the duration of the last batch if it is busy. A single client never
waits.
    batcher = MicroBatcher(model.assess_async, seconds=0.02)
    results = await batcher.submit(queries)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from terrella.core.predictive import Query

Result = TypeVar("Result")


class MicroBatcher(Generic[Result]):
    """Collects queries and runs them in batches. One event loop, so nothing is locked."""

    def __init__(
        self, run: Callable[[Sequence[Query]], Awaitable[list[Result]]], seconds: float
    ) -> None:
        """`run` answers a batch; `seconds` is the longest wait while the model is idle."""
        self._run = run
        self.seconds = seconds
        self.running = 0
        """Queries that the model is answering now."""
        self.expected = 1
        """Queries that were waiting or running when the last batch started."""
        self.last_duration = seconds
        """Seconds that the last batch took."""
        self.waiting: list[tuple[Sequence[Query], asyncio.Future[list[Result]]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._batches: set[asyncio.Task[None]] = set()

    async def submit(self, queries: Sequence[Query]) -> list[Result]:
        """Return one result per query; a caller that gives up does not disturb its batch."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Result]] = loop.create_future()
        self.waiting.append((queries, future))
        if self._timer is None:
            self._set_timer(self.last_duration if self.running else self.seconds)
        # Soon, not now: queries that arrive at the same moment join this batch.
        loop.call_soon(self._start_if_complete)
        return await future

    def _set_timer(self, seconds: float) -> None:
        """Restart the timer of the next batch; without waiting queries there is none."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.waiting:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._start)

    def _start_if_complete(self) -> None:
        if self.waiting and self._waiting_queries() >= self.expected:
            self._start()

    def _waiting_queries(self) -> int:
        return sum(len(queries) for queries, _ in self.waiting)

    def _start(self) -> None:
        """Start a batch with all waiting queries."""
        self.expected = max(1, self._waiting_queries() + self.running)
        batch, self.waiting = self.waiting, []
        self._set_timer(self.seconds)
        if batch:
            task = asyncio.create_task(self._run_batch(batch))
            self._batches.add(task)  # the event loop keeps only weak references to tasks
            task.add_done_callback(self._batches.discard)

    async def _run_batch(
        self, batch: list[tuple[Sequence[Query], asyncio.Future[list[Result]]]]
    ) -> None:
        all_queries = [query for queries, _ in batch for query in queries]
        self.running += len(all_queries)
        began = time.perf_counter()
        try:
            results = iter(await self._run(all_queries))
            for queries, future in batch:
                own_results = [next(results) for _ in queries]
                if not future.done():
                    future.set_result(own_results)
        except Exception as error:  # noqa: BLE001  any error of the model goes to its callers
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        finally:
            self.running -= len(all_queries)
            self.last_duration = max(self.seconds, time.perf_counter() - began)
            if not self.running:
                self._set_timer(self.seconds)
            self._start_if_complete()
