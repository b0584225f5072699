"""Seats: where an episode's world lives while a model thinks: in this process, in a thread, or on a Ray actor.

A seat starts an episode, carries out actions and hands over the record. A world that raises, hangs or dies costs its
own episode (masked, named), never the run. The driver does not know which kind of seat it got.
    async with seats.take() as seat: situation = await seat.start(task, member=0); acted = await seat.act("Up")
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from terrella.core.config import Configurable, dump
from terrella.core.episode import EpisodeRun
from terrella.core.errors import EngineError
from terrella.core.protocols import Task
from terrella.core.types import Episode, Situation, Stop, Transition
from terrella.core.world import World


class SeatLostError(Exception):
    """The world behind a seat raised, hung or died; the message names it."""

    def __init__(self, stop: Stop, message: str) -> None:
        """`stop` says which."""
        super().__init__(message)
        self.stop = stop


@dataclass(frozen=True, slots=True)
class Acted:
    """What came of an action."""

    step: Transition
    situation: Situation
    over: bool


class Seat(Protocol):
    """One episode's place."""

    async def start(self, task: Task, member: int) -> Situation:
        """Reset the world to the task's instance, with the member's own noise."""
        ...

    async def act(self, action: str) -> Acted:
        """Carry out one action."""
        ...

    async def finish(self, stop: Stop) -> Episode:
        """The record; `stop` ends an episode that the world has not ended."""
        ...


class Chair:
    """The synchronous half, wherever it stands: one world, one running episode."""

    def __init__(self, world: World) -> None:
        """One world; it serves one episode at a time."""
        self.world = world
        self.run: EpisodeRun | None = None

    def start(self, task: Task, member: int) -> Situation:
        """Reset."""
        noise = task.noise_seed + member
        self.run = EpisodeRun(self.world, seed=task.seed, noise_seed=noise, split=task.split, policy="model")
        return self.run.situation

    def act(self, action: str) -> Acted:
        """Step."""
        run = self.running
        return Acted(run.advance(action), run.situation, run.over)

    def finish(self, stop: Stop) -> Episode:
        """End it if the world has not, and hand over the record."""
        run = self.running
        if not run.over:
            run.end(stop)
        return run.episode

    def call(self, what: Literal["start", "act", "finish"], *arguments: Any) -> Any:
        """One of the three, by name: how a thread or another process asks."""
        methods: dict[str, Callable[..., Any]] = {"start": self.start, "act": self.act, "finish": self.finish}
        return methods[what](*arguments)

    def describe(self) -> str:
        """How a log names this world."""
        return f"world {self.world.name} (seed {self.world.seed}, instance {self.world.instance})"

    @property
    def running(self) -> EpisodeRun:
        """The episode on this chair."""
        if self.run is None:
            raise EngineError(self.world.name, "no episode was started on this seat")
        return self.run


class LocalSeat:
    """A chair in this process: stepped at once, or in a thread with a deadline."""

    def __init__(self, chair: Chair, pool: ThreadPoolExecutor | None = None, timeout: float = 30.0) -> None:
        """Without a pool the world must answer in microseconds; with one it may wait, and hang."""
        self.chair, self.pool, self.timeout = chair, pool, timeout
        self.hung = False

    async def start(self, task: Task, member: int) -> Situation:
        """Reset."""
        found: Situation = await self._call("start", task, member)
        return found

    async def act(self, action: str) -> Acted:
        """Step."""
        found: Acted = await self._call("act", action)
        return found

    async def finish(self, stop: Stop) -> Episode:
        """The record."""
        found: Episode = await self._call("finish", stop)
        return found

    async def _call(self, what: Literal["start", "act", "finish"], *arguments: Any) -> Any:
        try:
            if self.pool is None:
                return self.chair.call(what, *arguments)
            running = asyncio.get_running_loop().run_in_executor(self.pool, self.chair.call, what, *arguments)
            return await asyncio.wait_for(running, self.timeout)
        except TimeoutError:
            self.hung = True  # its thread cannot be stopped: the chair is left behind with it
            message = f"{self.chair.describe()} did not answer {what!r} within {self.timeout:g} s"
            raise SeatLostError(Stop.WORLD_TIMEOUT, message) from None
        except Exception as error:
            message = f"{self.chair.describe()} raised {type(error).__name__}: {error}"
            raise SeatLostError(Stop.WORLD_ERROR, message) from error


class Seats(Configurable):
    """Hands out seats and takes them back. Worlds are made when first needed and used again."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Where worlds live."""

        place: Literal["inline", "thread", "ray"] = "inline"
        """inline: microsecond worlds; thread: worlds that wait; ray: worlds in processes of their own."""
        workers: int = 2
        """Ray actors, or threads for each of which one episode can wait."""
        timeout: float = 30.0
        """Seconds a world may take to answer; past it its episode is masked."""

    config: Config

    def __init__(self, config: Config, world: World.Config) -> None:
        """Nothing is started yet."""
        super().__init__(config)
        self.world = world
        self.free: list[Chair] = []
        self.pool: ThreadPoolExecutor | None = None
        self.hosts: Any = None

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[Seat]:
        """A seat for one episode; a chair whose world hung is not used again."""
        if self.config.place == "ray":
            async with self._ray_hosts().take() as seat:
                yield seat
            return
        chair = self.free.pop() if self.free else Chair(self.world.build())
        local = LocalSeat(chair, self._threads(), self.config.timeout)
        try:
            yield local
        finally:
            if not local.hung:
                self.free.append(chair)

    def _threads(self) -> ThreadPoolExecutor | None:
        if self.config.place == "inline":
            return None
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.config.workers, thread_name_prefix="world")
        return self.pool

    def _ray_hosts(self) -> Any:
        if self.hosts is None:
            from terrella.engines.episodes.ray_seats import RayHosts

            self.hosts = RayHosts(dump(self.world), self.config.workers, self.config.timeout)
        return self.hosts

    def close(self) -> None:
        """End threads and actors."""
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
        if self.hosts is not None:
            self.hosts.close()
        self.pool = self.hosts = None
