"""A learned world model: a Hugging Face folder, a codec and a sampler behind `WorldModel.predict`.

Each query is sampled several times. The distinct completions, each with its exact probability under
the model, form a `PredictiveDistribution`. Sampling seeds are fixed, so the same query always gets
the same distribution, and distributions can be cached.
    model = load_world_model(Path("runs/lake/model"), samples=8)
    distribution = model.predict([Query(situation, "Up")])[0]
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar, get_args

from terrella.codecs.chat_template import Thinking
from terrella.codecs.choose import codec_for
from terrella.codecs.outcome import MAX_OUTCOME_TOKENS, OutcomeCodec
from terrella.core.files import folder_stamp
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import Codec, Sampler
from terrella.core.recorded_settings import (
    LEAST_PREDICTION,
    prediction_limit,
    recorded_choice,
    recorded_config,
)
from terrella.core.tokens import Sampled, TokenRequest
from terrella.core.types import Observation, Prediction
from terrella.engines.configs import EngineConfig
from terrella.engines.engine import load_tokenizer, open_sampler
from terrella.world_models.background import run_in_background

T = TypeVar("T")
CHOICES: tuple[Thinking, ...] = get_args(Thinking)
CACHE_LIMIT = 400_000
"""Default number of cached predictions."""
CACHED_PROMPT_TOKENS = 256
"""Mean length of the prompts for which the cache has room."""


class Cancellation:
    """Lets one thread cancel the predictions that another one waits for.

    The waiting thread gets `concurrent.futures.CancelledError`.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._futures: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def wait(self, future: Future[T]) -> T:
        """Return the result of a future, unless `cancel` was or is called."""
        with self._lock:
            self._futures.add(future)
            if self.cancelled:
                future.cancel()
        try:
            return future.result()
        finally:
            with self._lock:
                self._futures.discard(future)

    def cancel(self) -> None:
        """Cancel what is waited for, and whatever will be."""
        with self._lock:
            self.cancelled = True
            for future in self._futures:
                future.cancel()


current_cancellation: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)
"""Set it in the context of a thread, to cancel its predictions from another one."""


class LearnedWorldModel:
    """Predicts by sampling: one greedy completion and `samples - 1` random ones.

    The model then continues each distinct completion with the reward and the end of the episode.
    """

    def __init__(
        self,
        sampler: Sampler,
        codec: Codec,
        tokenizer: Any,
        *,
        samples: int = 8,
        turn_tokens: int = LEAST_PREDICTION,
        seed: int = 0,
        cache_limit: int = CACHE_LIMIT,
    ) -> None:
        """`cache_limit` is the number of cached predictions; 0 turns the cache off.

        A full cache is cleared.
        """
        self.sampler = sampler
        self.codec = codec
        self.tokenizer = tokenizer
        self.samples = samples
        self.turn_tokens = turn_tokens
        self.seed = seed
        self.cache_limit = cache_limit
        self.outcome = OutcomeCodec(tokenizer, codec.stop_ids)
        self.cache: dict[tuple[int, ...], PredictiveDistribution] = {}
        self.cached_tokens = 0
        """Tokens of the cached prompts: a few long ones take as much memory as many short ones."""
        self.sampled_queries = 0
        """Queries that were sampled, not answered from the cache."""

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        """One distribution per query; queries that are not cached share the sampler's batches."""
        future = run_in_background(self._predict(queries))
        cancellation = current_cancellation.get()
        return cancellation.wait(future) if cancellation else future.result()

    async def predict_async(
        self, queries: Sequence[Query], prompts: Sequence[tuple[int, ...]] | None = None
    ) -> list[PredictiveDistribution]:
        """As `predict`, from any event loop; concurrent calls share the sampler's batches.

        When the caller is cancelled, so is the sampling. `prompts` are those of the queries, if
        they are known.
        """
        return await asyncio.wrap_future(run_in_background(self._predict(queries, prompts)))

    def prompt(self, query: Query) -> tuple[int, ...]:
        """The token ids that the model is asked with."""
        return self.codec.ask_observation(query.situation, query.action)

    async def complete(self, request: TokenRequest) -> Sampled:
        """Sample one raw continuation, in the same batches as the predictions."""
        return await asyncio.wrap_future(run_in_background(self.sampler.sample(request)))

    async def _predict(
        self, queries: Sequence[Query], prompts: Sequence[tuple[int, ...]] | None = None
    ) -> list[PredictiveDistribution]:
        if prompts is None:
            prompts = list(map(self.prompt, queries))
        answers = {prompt: self.cache[prompt] for prompt in prompts if prompt in self.cache}
        new = {
            prompt: query.situation.observation
            for prompt, query in zip(prompts, queries, strict=True)
            if prompt not in answers
        }
        if new:
            self.sampled_queries += len(new)
            sampled = await asyncio.gather(
                *(self._sample(prompt, like) for prompt, like in new.items())
            )
            distributions = dict(zip(new, sampled, strict=True))
            self._store(distributions)
            answers.update(distributions)
        return [answers[prompt] for prompt in prompts]

    def _store(self, distributions: dict[tuple[int, ...], PredictiveDistribution]) -> None:
        if not self.cache_limit:
            return
        self.cached_tokens += sum(map(len, distributions))
        full = len(self.cache) + len(distributions) > self.cache_limit
        if full or self.cached_tokens > self.cache_limit * CACHED_PROMPT_TOKENS:
            self.cache.clear()
            self.cached_tokens = sum(map(len, distributions))
        self.cache.update(distributions)

    async def _sample(self, prompt: tuple[int, ...], like: Observation) -> PredictiveDistribution:
        requests = [
            self._request(
                prompt, self.turn_tokens, seed=self.seed * 1000 + number, greedy=number == 0
            )
            for number in range(self.samples)
        ]
        completions = await asyncio.gather(*map(self.sampler.sample, requests))
        counts = Counter(completion.token_ids for completion in completions)
        distinct = {completion.token_ids: completion for completion in completions}
        predictions = await asyncio.gather(
            *(self._finish(prompt, completion, like) for completion in distinct.values())
        )
        return _distribution(
            [(p, counts[ids]) for p, ids in zip(predictions, distinct, strict=True)]
        )

    async def _finish(
        self, prompt: tuple[int, ...], completion: Sampled, like: Observation
    ) -> Prediction | None:
        """Let the model continue with the outcome of the step, and parse both.

        None if either cannot be parsed.
        """
        observation = (
            self.codec.read_observation(completion.token_ids, like) if completion.stopped else None
        )
        if observation is None:
            return None
        outcome_prompt = (*prompt, *completion.token_ids)
        request = self._request(outcome_prompt, MAX_OUTCOME_TOKENS, seed=self.seed, greedy=True)
        continuation = await self.sampler.sample(request)
        outcome = self.outcome.read(continuation.token_ids)
        if outcome is None:
            return None
        reward, terminated, success = outcome
        logprob = min(0.0, sum(completion.logprobs) + sum(continuation.logprobs))
        return Prediction(
            observation=observation,
            reward=reward,
            terminated=terminated,
            success=success,
            logprob=logprob,
            risk=1.0 - math.exp(logprob),
        )

    def _request(
        self, prompt: tuple[int, ...], max_new_tokens: int, *, seed: int, greedy: bool
    ) -> TokenRequest:
        return TokenRequest(
            prompt_ids=prompt,
            max_new_tokens=max_new_tokens,
            seed=seed,
            temperature=0.0 if greedy else 1.0,
            stop_ids=self.codec.stop_ids,
        )


def _distribution(counted: Sequence[tuple[Prediction | None, int]]) -> PredictiveDistribution:
    """Readable predictions with their counts, most likely first."""
    readable = [(prediction, count) for prediction, count in counted if prediction is not None]
    readable.sort(key=lambda pair: -pair[0].logprob)
    return PredictiveDistribution(
        predictions=tuple(prediction for prediction, _ in readable),
        counts=tuple(count for _, count in readable),
        unreadable=sum(count for prediction, count in counted if prediction is None),
    )


def load_world_model(
    folder: Path,
    *,
    samples: int = 8,
    cache_limit: int = CACHE_LIMIT,
    engine: EngineConfig | None = None,
) -> LearnedWorldModel:
    """Load the model in a folder; callers with equal arguments share it and its cache.

    A model that was trained again in the same folder is loaded again. Its run's record says whether
    it thinks and how long its predictions may be; a model without a run is asked as its template
    says.
    """
    thinking = recorded_choice(folder, "thinking", CHOICES) or "auto"
    stamp = folder_stamp(folder)
    turn_tokens = prediction_limit(recorded_config(folder))
    return _load(folder, stamp, samples, turn_tokens, cache_limit, engine, thinking)


@functools.lru_cache(maxsize=4)
def _load(
    folder: Path,
    stamp: object,
    samples: int,
    turn_tokens: int,
    cache_limit: int,
    engine: EngineConfig | None,
    thinking: Thinking,
) -> LearnedWorldModel:
    tokenizer = load_tokenizer(folder)
    return LearnedWorldModel(
        open_sampler(folder, engine, work=folder.with_name("engine")),
        codec_for(tokenizer, thinking=thinking),
        tokenizer,
        samples=samples,
        turn_tokens=turn_tokens,
        cache_limit=cache_limit,
    )
