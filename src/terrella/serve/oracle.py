"""The model behind a server: one sampler, asked by everybody at once.

Questions of all clients run on the model's own event loop, in a thread beside the one that speaks HTTP; the sampler
takes new ones in between two forward passes. What cannot be kept up with is refused, not queued without end.
    oracle = Oracle(imagination, world_config, limits); await oracle.assess(questions)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from terrella.core.protocols import Sampled, TokenRequest
from terrella.core.world import World
from terrella.serve.gathering import Gathering
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import RequestError
from terrella.trust.beliefs import Belief, Question
from terrella.use.imagine import Imagination, ImaginedWorld, imagine
from terrella.use.world_models import LearnedWorldModel, in_background

T = TypeVar("T")


class Oracle:
    """Predictions, imagined worlds and completions from one model."""

    def __init__(
        self, imagination: Imagination, world: World.Config, limits: ServeSettings.Config, *, tokenizer: Any = None,
        name: str = "world-model",
    ) -> None:  # fmt: skip
        """`tokenizer` is for chat; without one there is none."""
        self.imagination, self.world, self.limits = imagination, world, limits
        self.tokenizer, self.name, self.waiting = tokenizer, name, 0
        self.gathering = Gathering(self._rate, limits.gather_seconds)
        example = world.build()
        example.reset(seed=0)
        self.instruction, self.actions = example.instruction, example.actions()
        self.example = example.observation_space.sample()
        self.rules = example.rules

    # --- predictions ----------------------------------------------------------------------------------------------

    async def assess(self, questions: Sequence[Question]) -> list[tuple[Belief, float]]:
        """Beliefs with their risks."""
        if self.waiting + len(questions) > self.limits.max_waiting:
            raise RequestError(503, "too many questions are waiting: come back later", "CAPACITY_REACHED")
        self.waiting += len(questions)
        try:
            return await self.gathering.ask(questions)
        finally:
            self.waiting -= len(questions)

    async def _rate(self, questions: Sequence[Question]) -> list[tuple[Belief, float]]:
        return self.imagination.assessor.rate(questions, await self._believe(questions))

    async def _believe(self, questions: Sequence[Question]) -> list[Belief]:
        model = self.imagination.assessor.model
        if isinstance(model, LearnedWorldModel):
            return await asyncio.wrap_future(in_background(model.believe_soon(questions)))
        return await in_thread(None, lambda: model.believe(questions))

    def trust(self, risk: float, depth: int) -> dict[str, Any]:
        """What every reply says about itself."""
        certificate = self.imagination.certificate
        return {
            "risk": risk, "depth": depth, "trust": self.imagination.verdict(risk, depth).value,
            "safe_horizon": certificate.safe_horizon if certificate and certificate.certified else 0,
        }  # fmt: skip

    def certificate(self) -> dict[str, Any]:
        """The certificate in short; a model without one is certified for nothing."""
        found = self.imagination.certificate
        if found is None:
            return {"certified": False, "reasons": ["there is no certificate beside the weights"]}
        about = found.sections.get("about", {})
        return {
            "certified": found.certified, "reasons": list(found.reasons), "safe_horizon": found.safe_horizon,
            "threshold": found.threshold, "world": about.get("world"), "weights_sha256": about.get("weights_sha256"),
        }  # fmt: skip

    def imagined(self) -> ImaginedWorld:
        """A world of its own for a session; they all ask the same model."""
        return imagine(self.world, imagination=self.imagination)

    # --- tokens ---------------------------------------------------------------------------------------------------

    @property
    def sampler(self) -> Any:
        """Who samples; None where the model is not one of tokens."""
        model = self.imagination.assessor.model
        return model.sampler if isinstance(model, LearnedWorldModel) else None

    async def complete(self, request: TokenRequest) -> Sampled:
        """One continuation, in the same batches as the predictions."""
        if self.sampler is None:
            raise RequestError(501, "this model does not complete text", "NOT_SUPPORTED")
        found: Sampled = await asyncio.wrap_future(in_background(self.sampler.sample(request)))
        return found


async def in_thread(executor: Executor | None, call: Callable[[], T]) -> T:
    """A call that blocks, beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(executor, call)
