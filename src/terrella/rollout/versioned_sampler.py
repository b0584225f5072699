"""A sampler whose weights change while episodes are under way; it says which weights wrote what.

`pause` lets the requests under way finish; then new weights are loaded, and `go_on` counts them. A
request is one turn, so worlds stay alive meanwhile, and a turn is never written by two versions.
    sampler = VersionedSampler(inner)
    sampled = await sampler.sample(request)       # sampled.version is 0
    await sampler.pause(); load_new_weights(); sampler.go_on()
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from terrella.core.protocols import BoundedSampler, Sampler
from terrella.core.tokens import Sampled, TokenRequest


class VersionedSampler:
    """Wraps a sampler; all methods belong to the event loop that the episodes run in."""

    def __init__(self, inner: Sampler, version: int = 0) -> None:
        self.inner = inner
        self.version = version
        self.context_tokens = inner.context_tokens if isinstance(inner, BoundedSampler) else 0
        self.running = 0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._released: list[str] = []

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
        """Forget a session; while paused, later: another thread may be loading weights."""
        if self._open.is_set():
            self.inner.release(session)
        else:
            self._released.append(session)

    async def pause(self) -> None:
        """Start no further request, and wait for those under way."""
        self._open.clear()
        await self._idle.wait()

    def go_on(self) -> None:
        """Continue with the next version of the weights."""
        self.version += 1
        self._open.set()
        for session in self._released:
            self.inner.release(session)
        self._released.clear()
