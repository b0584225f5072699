"""Processes that hold worlds, shared by all env pools of a run.

An actor serves episodes of any world, each in a thread. So a run over twenty task families needs
no more processes than a run over one, and never waits for a CPU that another of its pools holds.
    actors = share_actors(world, workers=2)
    handle = actors.least_busy(2)
    await actors.prepare(handle, world)
    answer = await actors.ask(handle, handle.actor.serve.remote(...), seconds=30.0)
    actors.release(world)
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from terrella.core.config import rebuild
from terrella.core.errors import WorldError
from terrella.core.types import Stop
from terrella.rollout.fanout import cluster, import_ray, search_path
from terrella.rollout.session import EpisodeSession
from terrella.rollout.wire import pack_end, pack_start, pack_step, unpack_task

logger = logging.getLogger("terrella")

THREADS = 64
"""Calls that one actor serves at the same time."""
HUNG_LIMIT = 16
"""An actor with this many threads lost to hung worlds is replaced."""
START_SECONDS = 120.0
"""Time for a process to start and import a world, before the world's own time limit counts."""
ALIVE_SECONDS = 5.0
"""An actor that does not answer a ping within this time is stuck."""


class EnvActor:
    """What runs in an actor's process: sessions by episode. Exceptions are returned as text."""

    def __init__(self, folders: list[str]) -> None:
        sys.path += [folder for folder in folders if folder not in sys.path]
        self.free: dict[str, list[EpisodeSession]] = {}
        self.taken: dict[int, tuple[str, EpisodeSession]] = {}

    def alive(self) -> bool:
        """Answers at once, unless a world blocks the whole process."""
        return True

    def prepare(self, world: str) -> None:
        """Import the world: its dumped config as JSON, whose module the caller has imported."""
        importlib.import_module(json.loads(world)["class"].split(":")[0])
        self.free.setdefault(world, [])

    def serve(self, world: str, episode: int, call: str, argument: str) -> tuple[str, str]:
        """("ok", answer) or ("failed", the exception)."""
        try:
            return "ok", self._serve(world, episode, call, argument)
        except Exception as error:  # noqa: BLE001  the worker raises it again, with the world's name
            return "failed", f"{type(error).__name__}: {error}"

    def _serve(self, world: str, episode: int, call: str, argument: str) -> str:
        if call == "start":
            session = self._session(world)
            self.taken[episode] = world, session
            session.start(*unpack_task(argument))
            return pack_start(session.running)
        _, session = self.taken[episode]
        if call == "act":
            session.act(argument)
            return pack_step(session.running)
        return pack_end(session.finish(Stop(argument)))

    def _session(self, world: str) -> EpisodeSession:
        try:
            return self.free[world].pop()
        except IndexError:  # not asked before: another thread may take the last one meanwhile
            return EpisodeSession(rebuild(json.loads(world)).build())

    def play_again(
        self, world: str, episode: int, task: str, actions: list[str]
    ) -> tuple[str, str]:
        """Bring a new session to where a lost one was."""
        answer = self.serve(world, episode, "start", task)
        for action in actions:
            if answer[0] == "ok":
                answer = self.serve(world, episode, "act", action)
        return answer

    def leave(self, episode: int, *, keep: bool) -> None:
        """The episode is over; a world that raised is not used again."""
        if episode in self.taken:
            world, session = self.taken.pop(episode)
            session.leave()
            if keep and world in self.free:
                self.free[world].append(session)

    def forget(self, world: str) -> None:
        """Close what is kept of a world: no pool uses it any more."""
        for session in self.free.pop(world, []):
            with contextlib.suppress(WorldError):  # a browser that is gone has closed its pages
                session.world.close()


@dataclass(eq=False)
class ActorHandle:
    """An actor as the run knows it. A lost one is replaced by a new handle in the same slot."""

    slot: int
    actor: Any
    prepared: dict[str, Any] = field(default_factory=dict)
    """By world, the answer to `prepare`; None once it was received."""
    lost: bool = False
    episodes: int = 0
    hung: int = 0

    def describe(self) -> str:
        names = sorted({world_name(world) for world in self.prepared})
        worlds = "world" if len(names) == 1 else "worlds"
        return f"worker {self.slot} with {self.episodes} episodes of {worlds} {', '.join(names)}"


class EnvActorError(Exception):
    """The process behind a call is gone, or stuck."""


class RayActors:
    """Actors on the Ray cluster that is there, or on a local one. `share_actors` makes it."""

    of_this_process: ClassVar[RayActors | None] = None

    def __init__(self) -> None:
        self.ray = import_ray()
        self.cluster = contextlib.ExitStack()
        self.handles: list[ActorHandle] = []
        self.losses: list[str] = []
        self.users: Counter[str] = Counter()
        """Pools by world."""

    def grow(self, workers: int) -> None:
        """Have at least this many actors."""
        if len(self.handles) < workers:
            self.cluster.enter_context(cluster(self.ray, workers))
            new = range(len(self.handles), workers)
            self.handles += [self._new_actor(slot) for slot in new]

    def least_busy(self, workers: int) -> ActorHandle:
        """The one of the first `workers` actors with the fewest episodes."""
        return min(self.handles[:workers], key=lambda handle: handle.episodes)

    def _new_actor(self, slot: int) -> ActorHandle:
        # Ray's own restarts would bring back an actor without its episodes, unnoticed.
        options = {
            "num_cpus": 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": THREADS,
        }
        return ActorHandle(slot, self.ray.remote(**options)(EnvActor).remote(search_path()))

    def log_loss(self, message: str) -> None:
        """Log a loss once, and count it."""
        self.losses.append(message)
        logger.warning("%s", message)

    def replace(self, handle: ActorHandle, reason: str) -> ActorHandle:
        """The actor that now has this one's slot: a new one, unless it was already replaced."""
        if not handle.lost:
            handle.lost = True
            self.log_loss(f"{handle.describe()} was lost: {reason}")
            self.ray.kill(handle.actor)
            self.handles[handle.slot] = self._new_actor(handle.slot)
        return self.handles[handle.slot]

    async def ask(self, handle: ActorHandle, call: Any, seconds: float) -> Any:
        """The answer to a call.

        TimeoutError if the world hangs, EnvActorError if its process is gone or stuck.
        """
        try:
            return await asyncio.wait_for(_awaitable(call), seconds)
        except self.ray.exceptions.RayError as error:
            raise EnvActorError(" ".join(str(error).split())[:300]) from error
        except TimeoutError:
            if handle.lost or not await self._is_alive(handle):
                raise EnvActorError("the whole process is stuck") from None
            raise

    async def prepare(self, handle: ActorHandle, world: str) -> None:
        """Wait until the actor has imported the world: an import is not a world that hangs."""
        if world not in handle.prepared:
            handle.prepared[world] = handle.actor.prepare.remote(world)
        if handle.prepared[world] is not None:
            await self.ask(handle, handle.prepared[world], START_SECONDS)
            handle.prepared[world] = None

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

    def release(self, world: str) -> None:
        """A pool is closed. The last one ends the actors, and Ray if we started it."""
        self.users[world] -= 1
        if self.users.total() == 0:
            for handle in self.handles:
                self.ray.kill(handle.actor)
            self.handles = []
            self.cluster.close()
        elif self.users[world] == 0:
            for handle in self.handles:
                if world in handle.prepared:
                    del handle.prepared[world]
                    handle.actor.forget.remote(world)


def share_actors(world: str, workers: int) -> RayActors:
    """At least so many actors of this process; each caller calls `release(world)` once."""
    actors = RayActors.of_this_process
    if actors is None or not actors.handles or not actors.ray.is_initialized():
        actors = RayActors.of_this_process = RayActors()
    actors.grow(workers)
    actors.users[world] += 1
    return actors


def world_name(world: str) -> str:
    """The name of a world, from its dumped config as JSON."""
    name: str = rebuild(json.loads(world)).owner.name
    return name


def _awaitable(call: Any) -> asyncio.Future[Any]:
    """A Ray reference for the current event loop: each batch of episodes has its own loop."""
    return asyncio.wrap_future(call.future())
