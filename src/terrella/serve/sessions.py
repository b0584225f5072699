"""Episodes in imagination, one per session: opened by a client, stepped, ended by it or for it.

The messages are OpenEnv's (`reset`, `step`, `state`, `close`); a session lives in a WebSocket or under an id in HTTP.
    session = sessions.open(); await session.reset({"seed": 3}); await session.step({"action": "Up"}); sessions.end(id)
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from terrella.core.errors import TerrellaError
from terrella.core.types import Split
from terrella.serve.metrics import Metrics
from terrella.serve.oracle import Oracle, in_thread
from terrella.serve.wire import LONGEST_ACTION, RequestError, observation_json, read_text, read_whole

THREADS = 64
"""Steps that may wait for the model at once; further ones wait for these."""


class Session:
    """One imagined episode after another."""

    def __init__(self, oracle: Oracle, threads: ThreadPoolExecutor) -> None:
        self.oracle, self.threads = oracle, threads
        self.id = secrets.token_urlsafe(16)
        self.world = oracle.imagined()
        self.used, self.begun, self.over = time.monotonic(), False, True
        self.lock = asyncio.Lock()

    async def reset(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode: `seed`, `noise_seed` and `split` as for any world."""
        body = {key: value for key, value in body.items() if value is not None}
        seed = read_whole(body, "seed", secrets.randbelow(2**31), low=0, high=2**62)
        noise = read_whole(body, "noise_seed", 0, low=0, high=2**62)
        split = body.get("split", self.world.config.split.value)
        if split not in list(Split):
            raise RequestError(422, f"`split` must be one of {', '.join(Split)}")
        options = {"split": split, "noise_seed": noise}
        seen, info = await self._do(lambda: self.world.reset(seed=seed, options=options))
        self.begun, self.over = True, False
        return self._reply(seen, None, False, info)

    async def step(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out `action`."""
        action = read_text(body, "action", LONGEST_ACTION)
        if not self.begun or self.over:
            raise RequestError(409, "the episode is over, or none was begun: reset first", "EXECUTION_ERROR")
        seen, reward, terminated, truncated, info = await self._do(lambda: self.world.step(action))
        self.over = terminated or truncated
        info = {**info, "terminated": terminated, "truncated": truncated}
        return self._reply(seen, float(reward), self.over, info)

    def state(self) -> dict[str, Any]:
        """Where it stands."""
        return {"episode_id": self.world.instance or None, "step_count": self.world.steps, "done": self.over}

    async def _do(self, call: Any) -> Any:
        async with self.lock:  # a client that does not wait for its answer waits here
            try:
                return await in_thread(self.threads, call)
            except TerrellaError as error:
                raise RequestError(422, error.what, "EXECUTION_ERROR") from error
            finally:
                self.used = time.monotonic()

    def _reply(self, seen: Any, reward: float | None, done: bool, info: Mapping[str, Any]) -> dict[str, Any]:
        certified = self.oracle.trust(float(info["risk"]), int(info["depth"]))
        metadata = {**info, "safe_horizon": certified["safe_horizon"]}
        actions = [] if done else list(self.world.actions())
        observation = {
            **observation_json(seen), "actions": actions, "instruction": self.world.instruction, "metadata": metadata
        }  # fmt: skip
        return {"observation": observation, "reward": reward, "done": done, "metadata": metadata}


class Sessions:
    """All sessions of a server, and the end of those that nobody uses."""

    def __init__(self, oracle: Oracle, metrics: Metrics) -> None:
        self.oracle, self.metrics, self.limits = oracle, metrics, oracle.limits
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="session")
        self.open_ones: dict[str, Session] = {}
        metrics.gauges["sessions"] = lambda: len(self.open_ones)

    def open(self) -> Session:
        """A new session, unless there are too many."""
        self.reap()
        if len(self.open_ones) >= self.limits.max_sessions:
            raise RequestError(503, f"all {self.limits.max_sessions} sessions are taken", "CAPACITY_REACHED")
        session = Session(self.oracle, self.threads)
        self.open_ones[session.id] = session
        return session

    def find(self, name: Any) -> Session:
        """The session of this id."""
        if not isinstance(name, str) or name not in self.open_ones:
            raise RequestError(404, "no such session: it was ended, or never begun", "SESSION_ERROR")
        return self.open_ones[name]

    def end(self, session: Session) -> None:
        """It is over; ending it twice is no error."""
        self.open_ones.pop(session.id, None)

    def reap(self) -> int:
        """End what has been idle for too long."""
        old = [s for s in self.open_ones.values() if time.monotonic() - s.used > self.limits.idle_seconds]
        for session in old:
            self.end(session)
        if old:
            self.metrics.count("sessions_reaped", len(old))
        return len(old)

    async def keep_reaping(self) -> None:
        """Forever; cancelled when the server ends."""
        while True:
            await asyncio.sleep(min(5.0, self.limits.idle_seconds / 2))
            self.reap()

    def close(self) -> None:
        """The server ends."""
        self.open_ones.clear()
        self.threads.shutdown(wait=False, cancel_futures=True)
