"""A sampler on a Tinker endpoint; it refuses what the endpoint would answer wrongly.

sampled = await TinkerSampler(adapter.sampler()).sample(request)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from terrella.core.errors import EngineError
from terrella.core.tokens import Sampled, TokenRequest
from terrella.engines.tinker.limits import no_masks


class EndpointSampler(Protocol):
    """What the client's sampler does."""

    async def sample(self, request: TokenRequest) -> Sampled: ...


class TinkerSampler:
    """`core.protocols.Sampler` of an adapter."""

    def __init__(
        self,
        sampler: EndpointSampler,
        *,
        context_tokens: int = 0,
        beat: Callable[[], None] | None = None,
    ) -> None:
        """`beat` is called after every reply."""
        self.sampler = sampler
        self.context_tokens = context_tokens
        """See `core.protocols.BoundedSampler`."""
        self.beat = beat

    async def sample(self, request: TokenRequest) -> Sampled:
        if request.allowed_ids is not None:
            raise no_masks()
        if request.temperature not in (0.0, 1.0):
            raise EngineError(
                "tinker",
                f"log-probs are those of temperature 1, not {request.temperature:g}",
                "use temperature 1",
            )
        sampled = await self.sampler.sample(request)
        if self.beat is not None:
            self.beat()
        return sampled

    def release(self, session: str) -> None:
        """Nothing to release: the endpoint keeps no sessions."""
