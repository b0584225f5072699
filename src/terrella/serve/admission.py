"""Admission control: bounds on waiting queries and on tokens in the sampler.

All routes count here before anything is queued. What does not fit among the waiting is refused at
once with status 503. What waits is let in, in its order, while its tokens fit into the sampler's
memory. So memory is bounded however many clients ask.
    with waiting.place(3):
        async with waiting.tokens(rows=24, longest=500): ...
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator

from terrella.serve.wire import RequestError

MOST_ROWS = 512
"""Rows that a sampler computes at once; further ones wait without a cache."""


class Waiting:
    """Questions and tokens that wait for the model or use it now. For one event loop."""

    def __init__(self, max_questions: int, max_tokens: int = 0) -> None:
        self.max_questions = max_questions
        self.max_tokens = max_tokens
        self.questions = 0
        self.rows = 0
        self._lengths: Counter[int] = Counter()
        """Length of the longest row of each request -> requests with it."""
        self._queue: deque[asyncio.Future[None]] = deque()

    @contextlib.contextmanager
    def place(self, questions: int = 1) -> Iterator[None]:
        """Count questions while they wait or are answered."""
        if self.questions + questions > self.max_questions:
            raise RequestError(
                503, "too many questions are waiting: try again later", "CAPACITY_REACHED"
            )
        self.questions += questions
        try:
            yield
        finally:
            self.questions -= questions

    def check_tokens(self, *, rows: int, longest: int) -> None:
        """Refuse what would not fit even if nobody else asked."""
        if min(rows, MOST_ROWS) * longest > self.max_tokens:
            raise RequestError(
                413, "too many tokens in one request: ask fewer or shorter questions", "TOO_LARGE"
            )

    @contextlib.asynccontextmanager
    async def tokens(self, *, rows: int, longest: int) -> AsyncIterator[None]:
        """Wait until the rows fit; the sampler's cache is as wide as the longest of all."""
        self.check_tokens(rows=rows, longest=longest)
        if self._queue or not self._fits(rows, longest):
            await self._queue_up(rows, longest)
        self.rows += rows
        self._lengths[longest] += 1
        try:
            self._wake_next()  # it may fit as well
            yield
        finally:
            self.rows -= rows
            self._lengths[longest] -= 1
            if not self._lengths[longest]:
                del self._lengths[longest]
            self._wake_next()

    def _fits(self, rows: int, longest: int) -> bool:
        width = max([longest, *self._lengths])
        return min(self.rows + rows, MOST_ROWS) * width <= self.max_tokens

    async def _queue_up(self, rows: int, longest: int) -> None:
        """Wait for one's turn, and then until there is room."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            while self._queue[0] is not turn or not self._fits(rows, longest):
                await turn
                turn_again: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._queue[self._queue.index(turn)] = turn_again
                turn = turn_again
        finally:
            self._queue.remove(turn)
            if self._queue:
                self._wake_next()

    def _wake_next(self) -> None:
        if self._queue and not self._queue[0].done():
            self._queue[0].set_result(None)
