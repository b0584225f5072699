"""A sampler on a Tinker endpoint; it refuses what the endpoint would answer wrongly.

sampled = await TinkerSampler(adapter.sampler()).sample(request)
"""

from __future__ import annotations

from typing import Protocol

from terrella.core.errors import EngineError
from terrella.core.tokens import Sampled, TokenRequest
from terrella.engines.tinker.limits import no_masks


class EndpointSampler(Protocol):
    """What the client's sampler does."""

    async def sample(self, request: TokenRequest) -> Sampled: ...


class TinkerSampler:
    """`core.protocols.Sampler` of an adapter."""

    def __init__(self, sampler: EndpointSampler) -> None:
        self.sampler = sampler

    async def sample(self, request: TokenRequest) -> Sampled:
        if request.allowed_ids is not None:
            raise no_masks()
        if request.temperature not in (0.0, 1.0):
            raise EngineError(
                "tinker",
                f"log-probs are those of temperature 1, not {request.temperature:g}",
                "use temperature 1",
            )
        return await self.sampler.sample(request)

    def release(self, session: str) -> None:
        """Nothing to release: the endpoint keeps no sessions."""
