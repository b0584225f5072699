"""Worlds on Ray actors: a killed process is replaced, and its episodes are played again.

Each actor serves many episodes at once, each in a thread, so a slow world delays nobody else.
Worlds are deterministic: an episode whose actor died is repeated on a new one with the same
actions, and continues. Every loss is logged with the worker and the world. `wire.py` has the
messages.
    pool = RayEnvPool(dump(world_config), workers=2, timeout=30.0)
    async with pool.take() as worker: situation = await worker.start(task, member=0)
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import logging
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from terrella.core.config import rebuild
from terrella.core.tokens import Task
from terrella.core.types import Episode, Situation, Stop
from terrella.rollout.fanout import cluster, import_ray, search_path
from terrella.rollout.session import EnvWorkerError, EpisodeSession, StepResult
from terrella.rollout.wire import (
    RemoteEpisode,
    pack_end,
    pack_start,
    pack_step,
    pack_task,
    unpack_task,
)

logger = logging.getLogger("terrella")

THREADS = 64
"""Calls that one actor serves at the same time."""
HUNG_LIMIT = 16
"""An actor with this many threads lost to hung worlds is replaced."""
START_SECONDS = 120.0
"""Time for a new process to import the world, before the world's own time limit counts."""
ALIVE_SECONDS = 5.0
"""An actor that does not answer a ping within this time is stuck."""


class EnvActor:
    """What runs in an actor's process: sessions by episode. Exceptions are returned as text."""

    def __init__(self, folders: list[str], world: dict[str, Any]) -> None:
        """`world` is the dumped config; its module is one that the caller has imported."""
        sys.path += [folder for folder in folders if folder not in sys.path]
        importlib.import_module(world["class"].split(":")[0])
        self.config = rebuild(world)
        self.free: list[EpisodeSession] = []
        self.taken: dict[int, EpisodeSession] = {}

    def alive(self) -> bool:
        """Answers at once, unless a world blocks the whole process."""
        return True

    def serve(self, episode: int, call: str, argument: str) -> tuple[str, str]:
        """("ok", answer) or ("failed", the exception)."""
        try:
            return "ok", self._serve(episode, call, argument)
        except Exception as error:  # noqa: BLE001  the worker raises it again, with the world's name
            return "failed", f"{type(error).__name__}: {error}"

    def _serve(self, episode: int, call: str, argument: str) -> str:
        if call == "start":
            session = self.free.pop() if self.free else EpisodeSession(self.config.build())
            self.taken[episode] = session
            session.start(*unpack_task(argument))
            return pack_start(session.running)
        session = self.taken[episode]
        if call == "act":
            session.act(argument)
            return pack_step(session.running)
        return pack_end(session.finish(Stop(argument)))

    def play_again(self, episode: int, task: str, actions: list[str]) -> tuple[str, str]:
        """Bring a new session to where a lost one was."""
        answer = self.serve(episode, "start", task)
        for action in actions:
            if answer[0] == "ok":
                answer = self.serve(episode, "act", action)
        return answer

    def leave(self, episode: int, *, keep: bool) -> None:
        """The episode is over; a world that raised is not used again."""
        session = self.taken.pop(episode, None)
        if session is not None and keep:
            self.free.append(session)


@dataclass(eq=False)
class ActorHandle:
    """An actor as the pool knows it. A lost one is replaced by a new handle in the same slot."""

    slot: int
    actor: Any
    started: Any
    """Answered when the process is up; whoever comes first awaits it."""
    up: bool = False
    lost: bool = False
    episodes: int = 0
    hung: int = 0


class EnvActorError(Exception):
    """The process behind a call is gone, or stuck."""


class RayEnvPool:
    """Actors on the Ray cluster that is there, or on a local one; started when first needed."""

    def __init__(self, world: dict[str, Any], workers: int, timeout: float) -> None:
        """`world` is the dumped config, `timeout` the seconds that a world may take to answer."""
        self.world = world
        self.workers = workers
        self.timeout = timeout
        self.name: str = rebuild(world).owner.name
        self.actors: list[ActorHandle] = []
        self.losses: list[str] = []
        self.numbers = itertools.count()
        self.cluster = contextlib.ExitStack()
        self.ray: Any = None

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[RayEnvWorker]:
        """A worker on the actor with the fewest episodes."""
        if not self.actors:
            self._start()
        worker = RayEnvWorker(self, min(self.actors, key=lambda handle: handle.episodes))
        try:
            yield worker
        finally:
            worker.leave()

    def _start(self) -> None:
        self.ray = import_ray()
        self.cluster.enter_context(cluster(self.ray, self.workers))
        self.actors = [self._new_actor(slot) for slot in range(self.workers)]

    def _new_actor(self, slot: int) -> ActorHandle:
        # Ray's own restarts would bring back an actor without its episodes, unnoticed.
        options = {
            "num_cpus": 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": THREADS,
        }
        actor = self.ray.remote(**options)(EnvActor).remote(search_path(), self.world)
        return ActorHandle(slot, actor, actor.alive.remote())

    def log_loss(self, message: str) -> None:
        """Log a loss once, and count it."""
        self.losses.append(message)
        logger.warning("%s", message)

    def replace(self, handle: ActorHandle, reason: str) -> ActorHandle:
        """The actor that now has this one's slot: a new one, unless it was already replaced."""
        if not handle.lost:
            handle.lost = True
            self.log_loss(
                f"worker {handle.slot} with {handle.episodes} episodes of world {self.name} "
                f"was lost: {reason}"
            )
            self.ray.kill(handle.actor)
            self.actors[handle.slot] = self._new_actor(handle.slot)
        return self.actors[handle.slot]

    async def ask(self, handle: ActorHandle, call: Any, seconds: float | None = None) -> Any:
        """The answer to a call.

        TimeoutError if the world hangs, EnvActorError if its process is gone or stuck.
        """
        try:
            return await asyncio.wait_for(_awaitable(call), seconds or self.timeout)
        except self.ray.exceptions.RayError as error:
            raise EnvActorError(" ".join(str(error).split())[:300]) from error
        except TimeoutError:
            if handle.lost or not await self._is_alive(handle):
                raise EnvActorError("the whole process is stuck") from None
            raise

    async def wait_until_up(self, handle: ActorHandle) -> None:
        """A process that is still importing is not a world that hangs."""
        if not handle.up:
            await self.ask(handle, handle.started, START_SECONDS)
            handle.up = True

    async def _is_alive(self, handle: ActorHandle) -> bool:
        with contextlib.suppress(TimeoutError, self.ray.exceptions.RayError):
            ping = _awaitable(handle.actor.alive.remote())
            return bool(await asyncio.wait_for(ping, ALIVE_SECONDS))
        return False

    def leave_hung(self, handle: ActorHandle) -> None:
        """Count a thread that never comes back; too many of them, and the process is replaced."""
        handle.hung += 1
        if handle.hung >= HUNG_LIMIT:
            self.replace(handle, f"{handle.hung} of its worlds hang")

    def close(self) -> None:
        """End the actors, and Ray if we started it."""
        for handle in self.actors:
            self.ray.kill(handle.actor)
        self.actors = []
        self.cluster.close()


def _awaitable(call: Any) -> asyncio.Future[Any]:
    """A Ray reference for the current event loop: each batch of episodes has its own loop."""
    return asyncio.wrap_future(call.future())


class RayEnvWorker:
    """One episode on an actor. It keeps what is needed to repeat the episode elsewhere, once."""

    def __init__(self, pool: RayEnvPool, handle: ActorHandle) -> None:
        self.pool = pool
        self.handle = handle
        self.number = next(pool.numbers)
        self.task = ""
        self.actions: list[str] = []
        self.title = f"world {pool.name}"
        self.remote: RemoteEpisode | None = None
        self.played_again = self.broken = self.hung = False
        handle.episodes += 1

    async def start(self, task: Task, member: int) -> Situation:
        self.task = pack_task(task, member)
        noise_seed = task.noise_seed + member
        self.title = f"world {self.pool.name} (seed {task.seed}, noise seed {noise_seed})"
        self.remote = RemoteEpisode(await self._ask("start", self.task))
        return self.remote.situation

    async def act(self, action: str) -> StepResult:
        answer = await self._ask("act", action)
        self.actions.append(action)
        assert self.remote is not None, "an episode is started before it is played"
        return self.remote.after(action, answer)

    async def finish(self, stop: Stop) -> Episode:
        answer = await self._ask("finish", stop.value)
        assert self.remote is not None, "an episode is started before it is finished"
        return self.remote.episode(answer)

    def leave(self) -> None:
        """Free the session; nobody waits for the answer."""
        self.handle.episodes -= 1
        if self.hung:
            self.pool.leave_hung(self.handle)
        elif not self.handle.lost:
            self.handle.actor.leave.remote(self.number, keep=not self.broken)

    async def _ask(self, call: str, argument: str) -> str:
        """One call; if the actor is lost, the episode is repeated on its replacement first."""
        try:
            try:
                return await self._ask_once(call, argument)
            except EnvActorError as lost:
                await self._move(call, lost)
                return await self._ask_once(call, argument)
        except TimeoutError:
            self.hung = True
            message = f"{self._where()} did not answer {call!r} within {self.pool.timeout:g} s"
            raise EnvWorkerError(Stop.WORLD_TIMEOUT, message) from None
        except EnvActorError as lost:
            message = f"{self._where()} lost its process a second time, on {call!r}: {lost}"
            raise EnvWorkerError(Stop.WORLD_ERROR, message) from lost

    async def _ask_once(self, call: str, argument: str) -> str:
        await self.pool.wait_until_up(self.handle)
        answer = self.handle.actor.serve.remote(self.number, call, argument)
        return self._open(await self.pool.ask(self.handle, answer))

    async def _move(self, call: str, lost: EnvActorError) -> None:
        """Move to the actor that replaced ours, and bring the episode to where it was."""
        replacement = self.pool.replace(self.handle, str(lost))
        self.handle.episodes -= 1
        replacement.episodes += 1
        self.handle = replacement
        if self.played_again:
            raise lost
        self.played_again = True
        count = len(self.actions)
        self.pool.log_loss(
            f"{self._where()} is played again from its {count} actions, for {call!r}"
        )
        if call != "start":
            await self.pool.wait_until_up(self.handle)
            again = self.handle.actor.play_again.remote(self.number, self.task, self.actions)
            self._open(await self.pool.ask(self.handle, again))

    def _open(self, answer: tuple[str, str]) -> str:
        status, content = answer
        if status == "failed":
            self.broken = True
            raise EnvWorkerError(Stop.WORLD_ERROR, f"{self._where()} raised {content}")
        return content

    def _where(self) -> str:
        return f"{self.title} on worker {self.handle.slot}"
