"""Worlds on Ray actors: a killed process is replaced, and its episodes are played again.

Each actor serves many episodes at once, each in a thread, so a slow world delays nobody else.
Worlds are deterministic: an episode whose actor died is repeated on a new one with the same
actions, and continues. Every loss is logged with the worker and the world. `ray_actors.py` has the
processes, which all pools of a run share, and `wire.py` the messages.
    pool = RayEnvPool(dump(world_config), workers=2, timeout=30.0)
    async with pool.take() as worker: situation = await worker.start(task, member=0)
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

from terrella.core.tokens import Task
from terrella.core.types import Episode, Situation, Stop
from terrella.rollout.ray_actors import (
    ActorHandle,
    EnvActorError,
    RayActors,
    share_actors,
    world_name,
)
from terrella.rollout.session import EnvWorkerError, StepResult
from terrella.rollout.wire import RemoteEpisode, pack_task

_episode_numbers = itertools.count()
"""Episodes of all pools: they share actors."""


class RayEnvPool:
    """Workers for one world. Actors are started when the first one is taken."""

    def __init__(self, world: dict[str, Any], workers: int, timeout: float) -> None:
        """`world` is the dumped config, `timeout` the seconds that a world may take to answer."""
        self.world = json.dumps(world, sort_keys=True)
        self.name = world_name(self.world)
        self.workers = workers
        self.timeout = timeout
        self.actors: RayActors | None = None

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[RayEnvWorker]:
        """A worker on the actor with the fewest episodes."""
        if self.actors is None:
            self.actors = share_actors(self.world, self.workers)
        worker = RayEnvWorker(self, self.actors, self.actors.least_busy(self.workers))
        try:
            yield worker
        finally:
            worker.leave()

    def close(self) -> None:
        """Give the actors back."""
        if self.actors is not None:
            self.actors.release(self.world)
        self.actors = None


class RayEnvWorker:
    """One episode on an actor. It keeps what is needed to repeat the episode elsewhere, once."""

    def __init__(self, pool: RayEnvPool, actors: RayActors, handle: ActorHandle) -> None:
        self.pool = pool
        self.actors = actors
        self.handle = handle
        self.number = next(_episode_numbers)
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
            self.actors.leave_hung(self.handle)
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
        await self.actors.prepare(self.handle, self.pool.world)
        answer = self.handle.actor.serve.remote(self.pool.world, self.number, call, argument)
        return self._open(await self.actors.ask(self.handle, answer, self.pool.timeout))

    async def _move(self, call: str, lost: EnvActorError) -> None:
        """Move to the actor that replaced ours, and bring the episode to where it was."""
        replacement = self.actors.replace(self.handle, str(lost))
        self.handle.episodes -= 1
        replacement.episodes += 1
        self.handle = replacement
        if self.played_again:
            raise lost
        self.played_again = True
        count = len(self.actions)
        self.actors.log_loss(
            f"{self._where()} is played again from its {count} actions, for {call!r}"
        )
        if call != "start":
            await self.actors.prepare(self.handle, self.pool.world)
            again = self.handle.actor.play_again.remote(
                self.pool.world, self.number, self.task, self.actions
            )
            self._open(await self.actors.ask(self.handle, again, self.pool.timeout))

    def _open(self, answer: tuple[str, str]) -> str:
        status, content = answer
        if status == "failed":
            self.broken = True
            raise EnvWorkerError(Stop.WORLD_ERROR, f"{self._where()} raised {content}")
        return content

    def _where(self) -> str:
        return f"{self.title} on worker {self.handle.slot}"
