"""Batch queries that arrive close together, so that one forward pass serves many of them.

The sampler batches whatever is there, pass by pass. A query that arrives alone costs a prefill of
its own, and clients that wait for replies come back one after another. So a query waits until as
many queries have arrived as were waiting or running when the last batch started: for a moment if
the model is idle, for at most the duration of the last batch if it is busy. A single client never
waits. A client that leaves takes its own queries with it and disturbs no others.
    batcher = MicroBatcher(start, finish, seconds=0.02)
    results = await batcher.submit(group)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from terrella.core.predictive import PredictiveDistribution, Query

Result = TypeVar("Result")
Distributions = list[PredictiveDistribution]


class Group(Protocol):
    """The queries of one request, with whatever `start` needs to know about them."""

    @property
    def queries(self) -> Sequence[Query]: ...


GroupType = TypeVar("GroupType", bound=Group)


class MicroBatcher(Generic[GroupType, Result]):
    """Collects queries and runs them in batches. One event loop, so nothing is locked."""

    def __init__(
        self,
        start: Callable[[Sequence[GroupType]], Sequence[asyncio.Future[Distributions]]],
        finish: Callable[[Sequence[Query], Distributions], list[Result]],
        seconds: float,
    ) -> None:
        """`start` begins a batch: one future per group, which can be cancelled by itself.

        `finish` turns the predictions of a whole batch into results. `seconds` is the longest wait
        while the model is idle.
        """
        self._start_groups = start
        self._finish = finish
        self.seconds = seconds
        self.running = 0
        """Queries that the model is answering now."""
        self.expected = 1
        """Queries that were waiting or running when the last batch started."""
        self.last_duration = seconds
        """Seconds that the last batch took."""
        self.waiting: list[tuple[GroupType, asyncio.Future[list[Result]]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._batches: set[asyncio.Task[None]] = set()

    async def submit(self, group: GroupType) -> list[Result]:
        """Return one result per query; when the caller is cancelled, so is the model's work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Result]] = loop.create_future()
        self.waiting.append((group, future))
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
        return sum(len(group.queries) for group, _ in self.waiting)

    def _start(self) -> None:
        """Start a batch with all waiting queries whose callers are still there."""
        self.waiting = [entry for entry in self.waiting if not entry[1].cancelled()]
        self.expected = max(1, self._waiting_queries() + self.running)
        batch, self.waiting = self.waiting, []
        self._set_timer(self.seconds)
        if batch:
            task = asyncio.create_task(self._run_batch(batch))
            self._batches.add(task)  # the event loop keeps only weak references to tasks
            task.add_done_callback(self._batches.discard)

    async def _run_batch(self, batch: list[tuple[GroupType, asyncio.Future[list[Result]]]]) -> None:
        count = sum(len(group.queries) for group, _ in batch)
        self.running += count
        began = time.perf_counter()
        try:
            groups = self._start_groups([group for group, _ in batch])
            for predicted, (_, future) in zip(groups, batch, strict=True):
                future.add_done_callback(_cancels(predicted))
            await asyncio.wait(groups)
            self._deliver(batch, groups)
        except Exception as error:  # noqa: BLE001  any error of the model goes to its callers
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        finally:
            self.running -= count
            self.last_duration = max(self.seconds, time.perf_counter() - began)
            if not self.running:
                self._set_timer(self.seconds)
            self._start_if_complete()

    def _deliver(
        self,
        batch: list[tuple[GroupType, asyncio.Future[list[Result]]]],
        groups: Sequence[asyncio.Future[Distributions]],
    ) -> None:
        """Give each caller its results, or the error of its own group."""
        queries: list[Query] = []
        predictions: Distributions = []
        answered: list[tuple[int, asyncio.Future[list[Result]]]] = []
        for predicted, (group, future) in zip(groups, batch, strict=True):
            cancelled = predicted.cancelled()
            error = RuntimeError("the model gave up") if cancelled else predicted.exception()
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
                continue
            queries += group.queries
            predictions += predicted.result()
            answered.append((len(group.queries), future))
        results = iter(self._finish(queries, predictions) if queries else [])
        for size, future in answered:
            future.set_result([next(results) for _ in range(size)])


def _cancels(
    predicted: asyncio.Future[Distributions],
) -> Callable[[asyncio.Future[list[Result]]], None]:
    """Return a callback that cancels the work of a caller who is gone."""

    def cancel(future: asyncio.Future[list[Result]]) -> None:
        if future.cancelled():
            predicted.cancel()

    return cancel
