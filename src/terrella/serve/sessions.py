"""Sessions: imagined episodes that a client resets and steps, ended by the client or when idle.

The messages are OpenEnv's (`reset`, `step`, `state`, `close`). A session belongs to a WebSocket, or
has an id in HTTP.
    session = sessions.open()
    await session.reset({"seed": 3})
    await session.step({"action": "Up"})
    sessions.end(session)
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from terrella.core.errors import TerrellaError
from terrella.core.types import Observation, Split
from terrella.serve.inference import InferenceService
from terrella.serve.metrics import Metrics
from terrella.serve.wire import (
    MAX_ACTION,
    RequestError,
    observation_json,
    read_int,
    read_text,
)
from terrella.world_models.language import Cancellation, current_cancellation

T = TypeVar("T")

THREADS = 64
"""Steps that may wait for the model at once; further steps wait for a thread."""


class Session:
    """The imagined episodes of one client, one after another."""

    def __init__(self, inference: InferenceService, threads: ThreadPoolExecutor) -> None:
        self.inference = inference
        self.threads = threads
        self.id = secrets.token_urlsafe(16)
        self.world = inference.imagined()
        self.last_used = time.monotonic()
        self.over = True
        """Whether the episode is over, or none was begun."""
        self.lock = asyncio.Lock()

    async def reset(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode with `seed`, `noise_seed` and `split`, as for any world."""
        body = {key: value for key, value in body.items() if value is not None}
        seed = read_int(body, "seed", secrets.randbelow(2**31), low=0, high=2**62)
        noise_seed = read_int(body, "noise_seed", 0, low=0, high=2**62)
        split = body.get("split", self.world.config.split.value)
        if split not in list(Split):
            raise RequestError(422, f"`split` must be one of {', '.join(Split)}")
        options = {"split": split, "noise_seed": noise_seed}
        observation, info = await self._call(lambda: self.world.reset(seed=seed, options=options))
        self.over = False
        return self._reply(observation, None, info)

    async def step(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take the step of `action`."""
        action = read_text(body, "action", MAX_ACTION)
        if self.over:
            raise RequestError(
                409, "the episode is over, or none was begun: reset first", "EXECUTION_ERROR"
            )
        result = await self._call(lambda: self.world.step(action))
        observation, reward, terminated, truncated, info = result
        self.over = terminated or truncated
        info = {**info, "terminated": terminated, "truncated": truncated}
        return self._reply(observation, float(reward), info)

    def state(self) -> dict[str, Any]:
        """Return OpenEnv's state of the episode."""
        return {
            "episode_id": self.world.instance or None,
            "step_count": self.world.steps,
            "done": self.over,
        }

    async def _call(self, call: Callable[[], T]) -> T:
        """Run a call of the world in a thread, one at a time."""
        with self.inference.waiting.place():
            async with self.lock:  # a client that does not wait for its reply waits here
                try:
                    return await self._run(call)
                except TerrellaError as error:
                    raise RequestError(422, error.what, "EXECUTION_ERROR") from error
                finally:
                    self.last_used = time.monotonic()

    async def _run(self, call: Callable[[], T]) -> T:
        """Run a call; when the client leaves, the sampling that it waits for is cancelled."""
        context = contextvars.copy_context()
        cancellation = Cancellation()
        context.run(current_cancellation.set, cancellation)
        work = asyncio.wrap_future(self.threads.submit(context.run, call))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self.over = True  # the step may be half done: the episode cannot go on
            cancellation.cancel()
            await asyncio.wait({work})  # the world may not be stepped before this has ended
            work.exception()
            raise

    def _reply(
        self, observation: Observation, reward: float | None, info: Mapping[str, Any]
    ) -> dict[str, Any]:
        trust = self.inference.trust(float(info["risk"]), int(info["depth"]))
        metadata = {**info, "safe_horizon": trust["safe_horizon"]}
        return {
            "observation": {
                **observation_json(observation),
                "actions": [] if self.over else list(self.world.actions()),
                "instruction": self.world.instruction,
                "metadata": metadata,
            },
            "reward": reward,
            "done": self.over,
            "metadata": metadata,
        }


class Sessions:
    """All sessions of a server; idle ones are ended."""

    def __init__(self, inference: InferenceService, metrics: Metrics) -> None:
        self.inference = inference
        self.metrics = metrics
        self.limits = inference.limits
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="session")
        self.active: dict[str, Session] = {}
        metrics.gauges["sessions"] = lambda: len(self.active)

    def open(self) -> Session:
        """Open a new session, unless there are too many."""
        self.reap()
        if len(self.active) >= self.limits.max_sessions:
            raise RequestError(
                503, f"all {self.limits.max_sessions} sessions are taken", "CAPACITY_REACHED"
            )
        session = Session(self.inference, self.threads)
        self.active[session.id] = session
        return session

    def find(self, session_id: Any) -> Session:
        """Return the session with this id."""
        if not isinstance(session_id, str) or session_id not in self.active:
            raise RequestError(
                404, "no such session: it has ended, or was never opened", "SESSION_ERROR"
            )
        return self.active[session_id]

    def end(self, session: Session) -> None:
        """End a session; ending it twice is not an error."""
        self.active.pop(session.id, None)

    def reap(self) -> int:
        """End sessions that were idle for too long; return how many."""
        oldest = time.monotonic() - self.limits.idle_seconds
        idle = [session for session in self.active.values() if session.last_used < oldest]
        for session in idle:
            self.end(session)
        if idle:
            self.metrics.count("sessions_reaped", len(idle))
        return len(idle)

    async def keep_reaping(self) -> None:
        """Reap forever; the task is cancelled when the server stops."""
        while True:
            await asyncio.sleep(min(5.0, self.limits.idle_seconds / 2))
            self.reap()

    def close(self) -> None:
        """End all sessions and their threads, when the server stops."""
        self.active.clear()
        self.threads.shutdown(wait=False, cancel_futures=True)
