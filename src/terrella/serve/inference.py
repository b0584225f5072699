"""The model behind a server, shared by all clients.

Queries of all clients run on the model's own event loop, in a thread beside the one that speaks
HTTP; the sampler takes new ones between two forward passes. Prompts are measured before they are
queued, first by characters and then by tokens. When too many are waiting, further queries are
refused instead of queued without bound. When a caller is cancelled, so is its work in the sampler.
    inference = InferenceService(certified_model, world_config, limits)
    await inference.assess(queries)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import Sampler
from terrella.core.tokens import Sampled, TokenRequest
from terrella.core.world import World
from terrella.serve.admission import Waiting
from terrella.serve.micro_batcher import MicroBatcher
from terrella.serve.settings import ServeSettings
from terrella.serve.wire import RequestError
from terrella.world_models.certified import CertifiedModel
from terrella.world_models.imagine import ImaginedWorld, imagine

T = TypeVar("T")
Prompt = tuple[int, ...]
INLINE_TEXT = 4096
"""Characters that are tokenized at once, without a thread: it takes less than a millisecond."""


@dataclass(frozen=True)
class QueryGroup:
    """The queries of one request and, for a language model, their prompts."""

    queries: Sequence[Query]
    prompts: Sequence[Prompt] | None = None


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
        self.waiting = Waiting(limits.max_waiting, limits.max_waiting_tokens)
        """Queries, steps and chats that have no result yet."""
        self.tokenizing = ThreadPoolExecutor(2, thread_name_prefix="tokenize")
        self.batcher = MicroBatcher[QueryGroup, tuple[PredictiveDistribution, float]](
            self._start, certified_model.rate, limits.gather_seconds
        )
        example = world.build()
        example.reset(seed=0)
        self.instruction = example.instruction
        self.actions = example.actions()
        self.example = example.observation_space.sample()
        self.rules = example.rules

    # --- predictions ------------------------------------------------------------------------------

    async def assess(self, queries: Sequence[Query]) -> list[tuple[PredictiveDistribution, float]]:
        """Return one distribution with its risk per query."""
        size = max(map(text_length, queries), default=0)
        self.check_text(size)
        with self.waiting.place(len(queries)):
            model = self.certified_model
            if not model.measures_prompts:
                return await self.batcher.submit(QueryGroup(queries))
            executor = None if size * len(queries) <= INLINE_TEXT else self.tokenizing
            prompts = await self.tokenize(executor, lambda: self._prompts(queries))
            longest = max(map(len, prompts), default=0) + model.turn_tokens
            async with self.waiting.tokens(rows=len(prompts) * model.samples, longest=longest):
                return await self.batcher.submit(QueryGroup(queries, prompts))

    def check_text(self, length: int) -> None:
        """Refuse a prompt by its characters, before anything is done with it."""
        if length > self.limits.max_prompt_text:
            raise RequestError(
                413, f"a prompt has at most {self.limits.max_prompt_text} characters", "TOO_LARGE"
            )

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Refuse a prompt by its tokens, before it is queued."""
        if not 0 < len(ids) <= self.limits.max_prompt_tokens:
            raise RequestError(
                413,
                f"the prompt has {len(ids)} tokens; 1 to {self.limits.max_prompt_tokens} are "
                "served",
                "TOO_LARGE",
            )

    async def tokenize(self, executor: Executor | None, call: Callable[[], T]) -> T:
        """Run a tokenizer, beside the event loop if there is an executor."""
        return call() if executor is None else await in_thread(executor, call)

    def _prompts(self, queries: Sequence[Query]) -> list[Prompt]:
        """Tokenize questions, up to the first that is too much."""
        model = self.certified_model
        prompts: list[Prompt] = []
        longest = 0
        for query in queries:
            prompts.append(model.prompt(query))
            self.check_prompt(prompts[-1])
            longest = max(longest, len(prompts[-1]) + model.turn_tokens)
            self.waiting.check_tokens(rows=len(prompts) * model.samples, longest=longest)
        return prompts

    def _start(
        self, groups: Sequence[QueryGroup]
    ) -> Sequence[asyncio.Future[list[PredictiveDistribution]]]:
        """Start a batch; each group can be cancelled by itself if the model is asynchronous."""
        model = self.certified_model
        if model.is_async:
            return [
                asyncio.ensure_future(model.predict_async(group.queries, group.prompts))
                for group in groups
            ]
        queries = [query for group in groups for query in group.queries]
        whole = asyncio.ensure_future(model.predict_async(queries))
        parts = []
        start = 0
        for group in groups:
            parts.append(asyncio.ensure_future(_part(whole, start, start + len(group.queries))))
            start += len(group.queries)
        return parts

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
        longest = len(request.prompt_ids) + request.max_new_tokens
        async with self.waiting.tokens(rows=1, longest=longest):
            return await self.certified_model.complete(request)

    def close(self) -> None:
        """End the threads, when the server stops."""
        self.tokenizing.shutdown(wait=False, cancel_futures=True)


def text_length(query: Query) -> int:
    """Characters of a query, its history included."""
    situation = query.situation
    observations = [situation.observation]
    actions = [query.action]
    for step in situation.history:
        observations += [step.observation, step.next_observation]
        actions.append(step.action)
    texts = [situation.instruction, *actions]
    texts += [getattr(observation, "text", "") for observation in observations]
    return sum(map(len, texts))


async def _part(whole: asyncio.Future[list[T]], start: int, stop: int) -> list[T]:
    return (await asyncio.shield(whole))[start:stop]


async def in_thread(executor: Executor | None, call: Callable[[], T]) -> T:
    """Run a blocking call beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(executor, call)
