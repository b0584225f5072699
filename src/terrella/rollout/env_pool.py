"""The env pool: where an episode's world lives while a model thinks.

A worker holds one world: in this process, in a thread, or on a Ray actor. It starts an episode,
carries out actions and returns the record. A world that raises, hangs or dies costs its own episode
(masked, with the reason), never the run. A rollout does not know which kind of worker it got.
Episodes that would disturb each other (`World.Config.exclusive`) wait here for their turn.
    async with pool.take() as worker:
        situation = await worker.start(task, member=0)
        result = await worker.act("Up")
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar
from weakref import WeakKeyDictionary

from terrella.core.bounds import check_above_zero, check_least
from terrella.core.config import Configurable, Local, dump
from terrella.core.errors import WorldError
from terrella.core.tokens import Task
from terrella.core.types import Episode, Situation, Stop
from terrella.core.world import World
from terrella.rollout.session import EnvWorkerError, EpisodeSession, StepResult
from terrella.rollout.world_threads import HungCallError, WorldThreads

if TYPE_CHECKING:
    from terrella.rollout.ray_env_pool import RayEnvPool

T = TypeVar("T")


class EnvWorker(Protocol):
    """Holds the world of one episode."""

    async def start(self, task: Task, member: int) -> Situation:
        """Reset the world to the task's instance, with the noise of this group member."""
        ...

    async def act(self, action: str) -> StepResult: ...

    async def finish(self, stop: Stop) -> Episode:
        """The record; `stop` ends an episode that the world has not ended."""
        ...


class LocalEnvWorker:
    """A session in this process, stepped directly or in a thread with a time limit."""

    def __init__(
        self,
        session: EpisodeSession,
        threads: WorldThreads | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Without threads the world must answer in microseconds; with them it may wait."""
        self.session = session
        self.threads = threads
        self.timeout = timeout
        self.title = f"world {session.world.name}"
        self.hung = False

    async def start(self, task: Task, member: int) -> Situation:
        # The task's own seed: a world that does not answer still has that of its last episode.
        self.title += f" (seed {task.seed}, noise seed {task.noise_seed + member})"
        return await self._call("start", lambda: self.session.start(task, member))

    async def act(self, action: str) -> StepResult:
        if self.threads is None:  # in threads, steps that take place at once share as they are
            try:
                await self.session.prepare(action)
            except Exception as error:
                raise self._raised(error) from error
        return await self._call("act", lambda: self.session.act(action))

    async def finish(self, stop: Stop) -> Episode:
        return await self._call("finish", lambda: self.session.finish(stop))

    async def _call(self, name: str, call: Callable[[], T]) -> T:
        try:
            if self.threads is None:
                return call()
            return await self.threads.run(call, timeout=self.timeout)
        except HungCallError:
            self.hung = True  # its thread cannot be stopped, so the session is abandoned with it
            message = f"{self.title} did not answer {name!r} within {self.timeout:g} s"
            raise EnvWorkerError(Stop.WORLD_TIMEOUT, message) from None
        except Exception as error:
            raise self._raised(error) from error

    def _raised(self, error: Exception) -> EnvWorkerError:
        message = f"{self.title} raised {type(error).__name__}: {error}"
        return EnvWorkerError(Stop.WORLD_ERROR, message)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()
"""Turns to play, by event loop and by what episodes have to themselves. All pools share them."""


def _turn(world: World.Config) -> contextlib.AbstractAsyncContextManager[None]:
    """Held while an episode is played that has something to itself; nothing for other worlds."""
    if not world.exclusive:
        return contextlib.nullcontext()
    return _turns.setdefault(asyncio.get_running_loop(), {}).setdefault(
        world.exclusive, asyncio.Lock()
    )


class EnvPool(Configurable):
    """Hands out workers and takes them back. Worlds are built when needed and used again."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        place: Local[Literal["inline", "thread", "ray"]] = "inline"
        """inline: worlds that answer in microseconds; thread: worlds that wait; ray: processes."""
        workers: Local[int] = 2
        """Ray actors, or threads."""
        timeout: float = 30.0
        """Seconds that a world may take to answer; after that its episode is masked."""

        def __post_init__(self) -> None:
            check_least(self, workers=1)
            check_above_zero(self, "timeout")

    config: Config

    def __init__(self, config: Config, world: World.Config) -> None:
        """Nothing is started yet."""
        super().__init__(config)
        self.world = world
        self.free: list[EpisodeSession] = []
        self.threads: WorldThreads | None = None
        self.ray_pool: RayEnvPool | None = None

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[EnvWorker]:
        """A worker for one episode; a session whose world hung is not used again."""
        async with _turn(self.world):
            if self.config.place == "ray":
                async with self._ray_pool().take() as ray_worker:
                    yield ray_worker
            else:
                async with self._take_local() as worker:
                    yield worker

    @contextlib.asynccontextmanager
    async def _take_local(self) -> AsyncIterator[EnvWorker]:
        session = self.free.pop() if self.free else EpisodeSession(self.world.build())
        worker = LocalEnvWorker(session, self._threads(), self.config.timeout)
        try:
            yield worker
        finally:
            if not worker.hung:
                session.leave()
                self.free.append(session)

    def _threads(self) -> WorldThreads | None:
        if self.config.place == "inline":
            return None
        if self.threads is None:
            self.threads = WorldThreads(self.config.workers)
        return self.threads

    def _ray_pool(self) -> RayEnvPool:
        if self.ray_pool is None:
            from terrella.rollout.ray_env_pool import RayEnvPool

            config = self.config
            self.ray_pool = RayEnvPool(dump(self.world), config.workers, config.timeout)
        return self.ray_pool

    def close(self) -> None:
        """End threads and actors, and close the worlds: a page stays open until it is closed."""
        for session in self.free:
            with contextlib.suppress(WorldError):  # a browser that is gone has closed its pages
                session.world.close()
        self.free.clear()
        if self.threads is not None:
            self.threads.close()
        if self.ray_pool is not None:
            self.ray_pool.close()
        self.threads = self.ray_pool = None
