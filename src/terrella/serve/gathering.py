"""Lets questions that come close together go to the model together: one reading pass then serves many of them.

The sampler batches whatever is there, pass by pass; a question that arrives alone costs a reading pass of its own, and
clients that wait for answers arrive one after another. Held back for about one pass, they go as a group; groups still
overlap in the sampler, so nobody waits for the group before.
    gathering = Gathering(model_answers, seconds=0.02); beliefs = await gathering.ask(questions)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from terrella.trust.beliefs import Belief, Question

SHARE = 0.5
"""A group goes when it is this large beside what is being served; at once when nothing is."""
Ask = Callable[[Sequence[Question]], Awaitable[list[Belief]]]


class Gathering:
    """Who waits and who is served. One event loop, so nothing is locked."""

    def __init__(self, ask: Ask, seconds: float) -> None:
        """`seconds` is the longest that anybody is held back."""
        self._ask, self.seconds, self.served = ask, seconds, 0
        self.waiting: list[tuple[Sequence[Question], asyncio.Future[list[Belief]]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._groups: set[asyncio.Task[None]] = set()

    async def ask(self, questions: Sequence[Question]) -> list[Belief]:
        """The answers to these questions; a caller that gives up does not disturb its group."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Belief]] = loop.create_future()
        self.waiting.append((questions, answer))
        if self._timer is None:
            self._timer = loop.call_later(self.seconds, self._go)
        loop.call_soon(self._look)  # after those who are arriving in this very moment
        return await answer

    def _look(self) -> None:
        if self.waiting and sum(len(questions) for questions, _ in self.waiting) >= SHARE * self.served:
            self._go()

    def _go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        group, self.waiting, self._timer = self.waiting, [], None
        if group:
            task = asyncio.create_task(self._serve(group))
            self._groups.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(self._groups.discard)

    async def _serve(self, group: list[tuple[Sequence[Question], asyncio.Future[list[Belief]]]]) -> None:
        asked = [question for questions, _ in group for question in questions]
        self.served += len(asked)
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
            self._look()
