"""Lets questions that come close together go to the model together: one reading pass then serves many of them.

The sampler batches whatever is there, pass by pass; a question that arrives alone costs a reading pass of its own, and
clients that wait for answers come back one after another. So they are held back until all come together who did last
time: a moment when the model is free, as long as the last group took when it is not. A client alone is never held back.
    gathering = Gathering(model_answers, seconds=0.02); beliefs = await gathering.ask(questions)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from terrella.trust.beliefs import Question

Answer = TypeVar("Answer")


class Gathering(Generic[Answer]):
    """Who waits and who is served. One event loop, so nothing is locked."""

    def __init__(self, ask: Callable[[Sequence[Question]], Awaitable[list[Answer]]], seconds: float) -> None:
        """`seconds` is the longest that anybody is held back while the model is free."""
        self._ask, self.seconds, self.served = ask, seconds, 0
        self.expected, self.took = 1, seconds
        """Questions that were waiting or being served when the last group went; seconds that the last one took."""
        self.waiting: list[tuple[Sequence[Question], asyncio.Future[list[Answer]]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._groups: set[asyncio.Task[None]] = set()

    async def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """The answers to these questions; a caller that gives up does not disturb its group."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Answer]] = loop.create_future()
        self.waiting.append((questions, answer))
        if self._timer is None:
            self._wind(self.took if self.served else self.seconds)
        loop.call_soon(self._look)  # after those who are arriving in this very moment
        return await answer

    def _wind(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._go) if self.waiting else None

    def _look(self) -> None:
        if self.waiting and self._asked() >= self.expected:
            self._go()

    def _asked(self) -> int:
        return sum(len(questions) for questions, _ in self.waiting)

    def _go(self) -> None:
        self.expected = max(1, self._asked() + self.served)
        group, self.waiting = self.waiting, []
        self._wind(self.seconds)  # nobody waits: no timer
        if group:
            task = asyncio.create_task(self._serve(group))
            self._groups.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(self._groups.discard)

    async def _serve(self, group: list[tuple[Sequence[Question], asyncio.Future[list[Answer]]]]) -> None:
        asked = [question for questions, _ in group for question in questions]
        self.served += len(asked)
        began = time.perf_counter()
        try:
            answers = iter(await self._ask(asked))
            for questions, answer in group:
                told = [next(answers) for _ in questions]
                if not answer.done():
                    answer.set_result(told)
        except Exception as error:  # noqa: BLE001  whatever a model raises goes to those who wait for it
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error)
        finally:
            self.served -= len(asked)
            self.took = max(self.seconds, time.perf_counter() - began)
            if not self.served:
                self._wind(self.seconds)
            self._look()
