"""Worlds on Ray actors: a killed process is replaced and its episodes are played again; a hung world is left behind.

Each host process serves many episodes at once, each on a thread, so that a slow world holds up nobody. Worlds are
deterministic: an episode whose host died starts again on a fresh one, with the same actions, and goes on. Every loss
is logged with the worker and the world. What crosses the wire is in `seat_wire.py`.
    hosts = RayHosts(dump(world_config), workers=2, timeout=30.0)
    async with hosts.take() as seat: situation = await seat.start(task, member=0)
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

from terrella.core.config import load
from terrella.core.protocols import Task
from terrella.core.types import Episode, Situation, Stop
from terrella.engines.episodes.seat_wire import Mirror, pack_end, pack_start, pack_step, pack_task, unpack_task
from terrella.engines.episodes.seats import Acted, Chair, SeatLostError
from terrella.engines.fanout import cluster, import_ray, search_path

logger = logging.getLogger("terrella")

THREADS = 64
"""Calls that one host serves at the same time."""
HUNG_LIMIT = 16
"""A host with so many threads lost to hung worlds is replaced."""
START_SECONDS = 120.0
"""A fresh process may take this long to import the world; only then does a world's own time-out count."""
ALIVE_SECONDS = 5.0
"""A host that cannot even say that it lives for so long is stuck: some world holds the whole process."""


class WorldHost:
    """What runs in a host process: chairs by episode. Exceptions become text, as in `fanout.Worker`."""

    def __init__(self, folders: list[str], world: dict[str, Any]) -> None:
        """The world's config, as it was dumped; its module is one that the driver has imported."""
        sys.path += [folder for folder in folders if folder not in sys.path]
        importlib.import_module(world["class"].split(":")[0])
        self.config = load(world)
        self.free: list[Chair] = []
        self.taken: dict[int, Chair] = {}

    def alive(self) -> bool:
        """Answers at once, unless a world holds the whole process."""
        return True

    def serve(self, episode: int, what: str, argument: str) -> tuple[str, str]:
        """("ok", answer) or ("failed", what was raised)."""
        try:
            return "ok", self._serve(episode, what, argument)
        except Exception as error:  # noqa: BLE001  the seat raises it again, with the world's name
            return "failed", f"{type(error).__name__}: {error}"

    def _serve(self, episode: int, what: str, argument: str) -> str:
        if what == "start":
            self.taken[episode] = chair = self.free.pop() if self.free else Chair(self.config.build())
            chair.start(*unpack_task(argument))
            return pack_start(chair.running)
        chair = self.taken[episode]
        if what == "act":
            chair.act(argument)
            return pack_step(chair.running)
        return pack_end(chair.finish(Stop(argument)))

    def play_again(self, episode: int, task: str, actions: list[str]) -> tuple[str, str]:
        """Bring a fresh chair to where a lost one stood."""
        answer = self.serve(episode, "start", task)
        for action in actions:
            if answer[0] == "ok":
                answer = self.serve(episode, "act", action)
        return answer

    def leave(self, episode: int, *, keep: bool) -> None:
        """The episode is over; a world that raised is not used again."""
        chair = self.taken.pop(episode, None)
        if chair is not None and keep:
            self.free.append(chair)


@dataclass(eq=False)
class Host:
    """A host process, as the driver knows it. A lost one is replaced by another `Host` in the same slot."""

    slot: int
    actor: Any
    started: Any
    """Answered when the process is up; asked once, awaited by whoever comes first."""
    up: bool = False
    lost: bool = False
    seats: int = 0
    hung: int = 0


class HostLostError(Exception):
    """The process behind a call is gone, or stuck."""


class RayHosts:
    """Host processes on the Ray there is, or on one of our own on loopback; started when first needed."""

    def __init__(self, world: dict[str, Any], workers: int, timeout: float) -> None:
        """`world` is the dumped config; `timeout` the seconds that a world may take to answer."""
        self.world, self.workers, self.timeout = world, workers, timeout
        self.name: str = load(world).owner.name
        self.hosts: list[Host] = []
        self.losses: list[str] = []
        self.numbers = itertools.count()
        self.cluster = contextlib.ExitStack()
        self.ray: Any = None

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[RaySeat]:
        """A seat on the host with the fewest."""
        if not self.hosts:
            self._start()
        seat = RaySeat(self, min(self.hosts, key=lambda host: host.seats))
        try:
            yield seat
        finally:
            seat.leave()

    def _start(self) -> None:
        self.ray = import_ray()
        self.cluster.enter_context(cluster(self.ray, self.workers))
        self.hosts = [self._new_host(slot) for slot in range(self.workers)]

    def _new_host(self, slot: int) -> Host:
        # Ray's own restarts would bring back an actor without its episodes, and nobody would be told.
        remote = self.ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, max_concurrency=THREADS)(WorldHost)
        actor = remote.remote(search_path(), self.world)
        return Host(slot, actor, actor.alive.remote())

    def note_loss(self, message: str) -> None:
        """Every loss is said once, and counted."""
        self.losses.append(message)
        logger.warning("%s", message)

    def replace(self, host: Host, reason: str) -> Host:
        """The host that now stands in this one's place: a fresh one, unless somebody else was faster."""
        if not host.lost:
            host.lost = True
            self.note_loss(
                f"worker {host.slot}, host of {host.seats} episodes of world {self.name}, was lost: {reason}"
            )
            self.ray.kill(host.actor)
            self.hosts[host.slot] = self._new_host(host.slot)
        return self.hosts[host.slot]

    async def ask(self, host: Host, call: Any, seconds: float | None = None) -> Any:
        """The answer to a call; TimeoutError when the world hangs, HostLostError when its process is gone or stuck."""
        try:
            return await asyncio.wait_for(_awaitable(call), seconds or self.timeout)
        except self.ray.exceptions.RayError as error:
            raise HostLostError(" ".join(str(error).split())[:300]) from error
        except TimeoutError:
            if host.lost or not await self._is_alive(host):
                raise HostLostError("the whole process is stuck") from None
            raise

    async def wait_until_up(self, host: Host) -> None:
        """A process that is still importing is not a world that hangs."""
        if not host.up:
            await self.ask(host, host.started, START_SECONDS)
            host.up = True

    async def _is_alive(self, host: Host) -> bool:
        with contextlib.suppress(TimeoutError, self.ray.exceptions.RayError):
            return bool(await asyncio.wait_for(_awaitable(host.actor.alive.remote()), ALIVE_SECONDS))
        return False

    def leave_hung(self, host: Host) -> None:
        """A thread that never comes back; too many of them, and the process goes."""
        host.hung += 1
        if host.hung >= HUNG_LIMIT:
            self.replace(host, f"{host.hung} of its worlds hang")

    def close(self) -> None:
        """End the hosts, and Ray if it is ours."""
        for host in self.hosts:
            self.ray.kill(host.actor)
        self.hosts = []
        self.cluster.close()


def _awaitable(call: Any) -> asyncio.Future[Any]:
    """A Ray reference for the event loop that runs now: each batch of episodes has its own."""
    return asyncio.wrap_future(call.future())


class RaySeat:
    """One episode on some host. It keeps what it needs to play the episode again elsewhere, once."""

    def __init__(self, hosts: RayHosts, host: Host) -> None:
        """On this host, until it dies."""
        self.hosts, self.host, self.number = hosts, host, next(hosts.numbers)
        self.task, self.actions = "", list[str]()
        self.title = f"world {hosts.name}"
        self.mirror: Mirror | None = None
        self.played_again = self.broken = self.hung = False
        host.seats += 1

    async def start(self, task: Task, member: int) -> Situation:
        """Reset."""
        self.task = pack_task(task, member)
        self.title = f"world {self.hosts.name} (seed {task.seed}, noise seed {task.noise_seed + member})"
        self.mirror = Mirror(await self._ask("start", self.task))
        return self.mirror.situation

    async def act(self, action: str) -> Acted:
        """Step."""
        answer = await self._ask("act", action)
        self.actions.append(action)
        assert self.mirror is not None, "an episode is started before it is played"
        return self.mirror.after(action, answer)

    async def finish(self, stop: Stop) -> Episode:
        """The record."""
        answer = await self._ask("finish", stop.value)
        assert self.mirror is not None, "an episode is started before it is finished"
        return self.mirror.episode(answer)

    def leave(self) -> None:
        """Free the chair; nobody waits for the answer."""
        self.host.seats -= 1
        if self.hung:
            self.hosts.leave_hung(self.host)
        elif not self.host.lost:
            self.host.actor.leave.remote(self.number, keep=not self.broken)

    async def _ask(self, what: str, argument: str) -> str:
        """One call; when the host is lost on it, the episode is played again on the next host and asked again."""
        try:
            try:
                return await self._ask_once(what, argument)
            except HostLostError as lost:
                await self._move(what, lost)
                return await self._ask_once(what, argument)
        except TimeoutError:
            self.hung = True
            message = f"{self._where()} did not answer {what!r} within {self.hosts.timeout:g} s"
            raise SeatLostError(Stop.WORLD_TIMEOUT, message) from None
        except HostLostError as lost:
            message = f"{self._where()} lost its process a second time, on {what!r}: {lost}"
            raise SeatLostError(Stop.WORLD_ERROR, message) from lost

    async def _ask_once(self, what: str, argument: str) -> str:
        await self.hosts.wait_until_up(self.host)
        return self._open(await self.hosts.ask(self.host, self.host.actor.serve.remote(self.number, what, argument)))

    async def _move(self, what: str, lost: HostLostError) -> None:
        """To the host that replaced ours, and there to where the episode stood."""
        new = self.hosts.replace(self.host, str(lost))
        self.host.seats -= 1
        new.seats += 1
        self.host = new
        if self.played_again:
            raise lost
        self.played_again = True
        self.hosts.note_loss(f"{self._where()} is played again from its {len(self.actions)} actions, for {what!r}")
        if what != "start":
            await self.hosts.wait_until_up(self.host)
            call = self.host.actor.play_again.remote(self.number, self.task, self.actions)
            self._open(await self.hosts.ask(self.host, call))

    def _open(self, answer: tuple[str, str]) -> str:
        status, content = answer
        if status == "failed":
            self.broken = True
            raise SeatLostError(Stop.WORLD_ERROR, f"{self._where()} raised {content}")
        return content

    def _where(self) -> str:
        return f"{self.title} on worker {self.host.slot}"
