"""The model behind a server, shared by all clients.

Queries of all clients run on the model's own event loop, in a thread beside the one that speaks
HTTP; the sampler takes new ones between two forward passes. When too many are waiting, further
queries are refused instead of queued without bound.
    inference = InferenceService(certified_model, world_config, limits)
    await inference.assess(queries)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import Sampler
from terrella.core.tokens import Sampled, TokenRequest
from terrella.core.world import World
from terrella.serve.micro_batcher import MicroBatcher
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import RequestError
from terrella.world_models.certified import CertifiedModel
from terrella.world_models.imagine import ImaginedWorld, imagine

T = TypeVar("T")


class InferenceService:
    """Predictions, imagined worlds and completions from one model."""

    def __init__(
        self,
        certified_model: CertifiedModel,
        world: World.Config,
        limits: ServeSettings.Config,
        *,
        tokenizer: Any = None,
        name: str = "world-model",
    ) -> None:
        """Without a `tokenizer` there is no chat."""
        self.certified_model = certified_model
        self.world = world
        self.limits = limits
        self.tokenizer = tokenizer
        self.name = name
        self.waiting = 0
        """Queries that have no result yet."""
        self.batcher = MicroBatcher(certified_model.assess_async, limits.gather_seconds)
        example = world.build()
        example.reset(seed=0)
        self.instruction = example.instruction
        self.actions = example.actions()
        self.example = example.observation_space.sample()
        self.rules = example.rules

    # --- predictions ------------------------------------------------------------------------------

    async def assess(self, queries: Sequence[Query]) -> list[tuple[PredictiveDistribution, float]]:
        """Return one distribution with its risk per query."""
        if self.waiting + len(queries) > self.limits.max_waiting:
            raise RequestError(
                503, "too many questions are waiting: try again later", "CAPACITY_REACHED"
            )
        self.waiting += len(queries)
        try:
            return await self.batcher.submit(queries)
        finally:
            self.waiting -= len(queries)

    def trust(self, risk: float, depth: int) -> dict[str, Any]:
        """Return the fields about trust that every reply has."""
        certificate = self.certified_model.certificate
        safe_horizon = certificate.safe_horizon if certificate and certificate.certified else 0
        return {
            "risk": risk,
            "depth": depth,
            "trust": self.certified_model.verdict(risk, depth).value,
            "safe_horizon": safe_horizon,
        }

    def certificate(self) -> dict[str, Any]:
        """Summarise the certificate; a model without one is not certified."""
        certificate = self.certified_model.certificate
        if certificate is None:
            return {"certified": False, "reasons": ["there is no certificate beside the weights"]}
        about = certificate.sections.get("about", {})
        return {
            "certified": certificate.certified,
            "reasons": list(certificate.reasons),
            "safe_horizon": certificate.safe_horizon,
            "threshold": certificate.threshold,
            "world": about.get("world"),
            "weights_sha256": about.get("weights_sha256"),
        }

    def imagined(self) -> ImaginedWorld:
        """Build an imagined world for one session; all sessions share the model."""
        return imagine(self.world, certified_model=self.certified_model)

    # --- tokens -----------------------------------------------------------------------------------

    @property
    def sampler(self) -> Sampler | None:
        """The model's sampler; None if it is not a language model."""
        return self.certified_model.sampler

    async def complete(self, request: TokenRequest) -> Sampled:
        """Sample one continuation, in the same batches as the predictions."""
        if self.sampler is None:
            raise RequestError(501, "this model does not complete text", "NOT_SUPPORTED")
        return await self.certified_model.complete(request)


async def in_thread(executor: Executor | None, call: Callable[[], T]) -> T:
    """Run a blocking call beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(executor, call)
