"""Rollouts beside training: groups are delivered as they finish, within a bound on their age.

A thread plays episodes while the trainer learns. `take` returns the next batch of finished groups,
`publish` gives the sampler new weights; worlds stay alive meanwhile. A group is never older than
`staleness` versions when it is taken: `take` waits for slow groups whose turn it is, and each
version of the weights starts only as many tasks as one step takes.
    with BackgroundRollout(rollout, sampler, tasks, per_step=16, group_size=8, ...) as playing:
        groups = playing.take()
        playing.publish(load_weights)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from terrella.core.protocols import Sampler
from terrella.core.tokens import Task, TokenEpisode
from terrella.rollout.rollout import Rollout
from terrella.rollout.versioned_sampler import VersionedSampler

T = TypeVar("T")


@dataclass(slots=True)
class Group:
    """The episodes of one task, while they are played and afterwards."""

    number: int
    """The task's number in the run."""
    started: int
    """The version of the weights when its first turn could be sampled."""
    episodes: list[TokenEpisode] = field(default_factory=list[TokenEpisode])

    @property
    def oldest(self) -> int:
        """The version of its oldest token."""
        written = [min(each.versions) for each in self.episodes if each.versions]
        return min(written, default=self.started)


class BackgroundRollout:
    """Plays groups in a thread of its own; use it as a context manager.

    The caller is one trainer: `take`, `publish` and `take` again.
    """

    def __init__(  # noqa: PLR0913  what is played, and how far ahead
        self,
        rollout: Rollout,
        sampler: Sampler,
        tasks: Callable[[int], Task],
        numbers: Callable[[int], int],
        *,
        per_step: int,
        group_size: int,
        staleness: int,
        total: int,
        seed: int,
    ) -> None:
        """`numbers(i)` is the number of the i-th task of this process; `staleness` is at least 1.

        `per_step` groups are taken at each step and `total` in all: no more are started.
        """
        self.rollout = rollout
        self.inner = sampler
        self.tasks = tasks
        self.numbers = numbers
        self.per_step = per_step
        self.group_size = group_size
        self.staleness = staleness
        self.total = total
        self.seed = seed
        self.started = 0
        """Tasks that were started, those of `resume` not counted."""
        self.taken = 0
        """Groups that were taken."""
        self.again: list[int] = []
        """Numbers of tasks that a killed run had started and not taken."""
        self.running: dict[int, Group] = {}
        self.finished: list[Group] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollout", daemon=True)
        self._progress: asyncio.Condition
        self._failure: BaseException | None = None
        self._plays: set[asyncio.Task[None]] = set()
        # One thread: a source of tasks may keep a world of its own.
        self._tasks_thread = ThreadPoolExecutor(1, thread_name_prefix="tasks")

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._tasks_thread.shutdown()

    # --- the trainer's side -----------------------------------------------------------------------

    def take(self) -> list[Group]:
        """The groups of the next step: those that must not wait, then the first that finish."""
        return self._call(self._take())

    def publish(self, load: Callable[[], None]) -> None:
        """Give the sampler the trainer's weights; episodes go on with them at their next turn."""
        self._call(self.sampler.pause())
        load()  # here and not in the thread: it may exchange weights with other processes
        self._call(self._go_on())

    def progress(self) -> dict[str, Any]:
        """What a resumed run needs: how many tasks were started and which of them were not taken.

        Their episodes are played again.
        """
        return self._call(self._progress_now())

    def resume(self, progress: dict[str, Any]) -> None:
        """Continue where `progress` was taken. Call it before entering the context."""
        self.started = int(progress["started"])
        self.taken = int(progress["taken"])
        self.again = [int(number) for number in progress["open"]]

    # --- the thread's side ------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        waiting: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return waiting.result()

    async def _begin(self) -> None:
        self._progress = asyncio.Condition()
        self.sampler = VersionedSampler(self.inner)
        self._fill()

    async def _end(self) -> None:
        for play in self._plays:
            play.cancel()
        await asyncio.gather(*self._plays, return_exceptions=True)

    def _fill(self) -> None:
        """Start tasks as far ahead as the bound on staleness and the end of the run allow."""
        ahead = min((self.staleness + 1) * self.per_step, self.total - self.taken)
        while len(self.running) + len(self.finished) < ahead:
            if self.again:
                number = self.again.pop(0)
            else:
                number = self.numbers(self.started)
                self.started += 1
            group = Group(number, self.sampler.version)
            self.running[number] = group
            play = asyncio.get_running_loop().create_task(self._play(group))
            self._plays.add(play)
            play.add_done_callback(self._plays.discard)

    async def _play(self, group: Group) -> None:
        try:
            loop = asyncio.get_running_loop()
            task = await loop.run_in_executor(self._tasks_thread, self.tasks, group.number)
            group.episodes = await self.rollout.run_async(
                self.sampler, [task], group_size=self.group_size, seed=self.seed
            )
        except Exception as error:  # noqa: BLE001  the trainer gets it from `take`
            self._failure = error
        async with self._progress:
            self.running.pop(group.number, None)
            self.finished.append(group)
            self._progress.notify_all()

    async def _take(self) -> list[Group]:
        async with self._progress:
            await self._progress.wait_for(lambda: self._failure is not None or self._is_ready())
        if self._failure is not None:
            raise self._failure
        taken, self.finished = self._split()
        self.taken += len(taken)
        return taken

    def _split(self) -> tuple[list[Group], list[Group]]:
        """The finished groups of the next step, oldest first, and the rest."""
        by_age = sorted(self.finished, key=lambda group: group.started)
        return by_age[: self.per_step], by_age[self.per_step :]

    def _is_ready(self) -> bool:
        """Enough groups have finished, and the others can be taken before they are too old."""
        taken, rest = self._split()
        if len(taken) < self.per_step:
            return False
        left = [group.started for group in (*rest, *self.running.values())]
        for steps in range(self.staleness + 1):
            last = self.sampler.version + steps - self.staleness
            # Groups that this many further steps must take: they cannot take more than all.
            if sum(started <= last for started in left) > steps * self.per_step:
                return False
        return True

    async def _go_on(self) -> None:
        self.sampler.go_on()
        self._fill()

    async def _progress_now(self) -> dict[str, Any]:
        numbers: Sequence[int] = [*self.running, *(group.number for group in self.finished)]
        return {
            "started": self.started,
            "taken": self.taken,
            "open": sorted({*numbers, *self.again}),
        }
