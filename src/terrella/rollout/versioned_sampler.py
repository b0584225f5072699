"""A sampler whose weights change while episodes are under way; it says which weights wrote what.

`swap` lets the requests under way finish, loads the new weights and goes on. A request is one turn,
so worlds stay alive across a swap, and a turn is never written by two versions.
    sampler = VersionedSampler(inner)
    sampled = await sampler.sample(request)       # sampled.version is 0
    await sampler.swap(load_weights)              # later turns have version 1
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from terrella.core.protocols import Sampler
from terrella.core.tokens import Sampled, TokenRequest


class VersionedSampler:
    """Wraps a sampler; all methods belong to the event loop that the episodes run in."""

    def __init__(self, inner: Sampler, version: int = 0) -> None:
        self.inner = inner
        self.version = version
        self.running = 0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def sample(self, request: TokenRequest) -> Sampled:
        await self._open.wait()
        self.running += 1
        self._idle.clear()
        version = self.version
        try:
            sampled = await self.inner.sample(request)
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()
        return replace(sampled, version=version)

    def release(self, session: str) -> None:
        self.inner.release(session)

    async def swap(self, load: Callable[[], None]) -> None:
        """Load new weights between turns; `load` runs in a thread, because it may take seconds."""
        self._open.clear()
        try:
            await self._idle.wait()
            await asyncio.to_thread(load)
            self.version += 1
        finally:
            self._open.set()
