"""A learned world model: a plain Hugging Face folder, a codec and a sampler behind `WorldModel.predict`.

A question is asked several times; the different answers, each with its exact probability under the model, are a
`Belief`. The same question always gets the same belief (sampling seeds are fixed), so beliefs are kept and reused.
    model = load_world_model(Path("runs/lake/model"), samples=8); model.predict((), observation, "Up")
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.outcome import LONGEST, OutcomeWords
from terrella.core.protocols import Codec, Sampled, Sampler, TokenRequest
from terrella.core.types import Observation, Prediction, Situation, Transition
from terrella.trust.beliefs import Belief, Question

T = TypeVar("T")
MOST_KEPT = 400_000
"""Beliefs kept; past it all are forgotten and asked again when needed. 0 keeps none."""


class LearnedWorldModel:
    """Beliefs by sampling: one greedy answer and `samples - 1` drawn ones, then what each says the step earns."""

    def __init__(
        self, sampler: Sampler, codec: Codec, tokenizer: Any, *, samples: int = 8, turn_tokens: int = 128,
        instruction: str = "", seed: int = 0,
    ) -> None:  # fmt: skip
        """`instruction` is what `predict` tells a model that reads one; questions carry their own."""
        self.sampler, self.codec, self.samples, self.turn_tokens = sampler, codec, samples, turn_tokens
        self.outcome = OutcomeWords(tokenizer, codec.stop_ids)
        self.instruction, self.seed = instruction, seed
        self.kept: dict[tuple[int, ...], Belief] = {}
        self.most_kept = MOST_KEPT
        self.asked = 0
        """Questions that were put to the model; those answered from memory are not."""

    def predict(self, history: Sequence[Transition], observation: Observation, action: str) -> Prediction:
        """The likeliest result of one step; `risk` is the probability the model leaves for all others."""
        situation = Situation(
            instruction=self.instruction, observation=observation, actions=(), history=history, steps_left=1
        )
        (belief,) = self.believe([Question(situation, action)])
        if not belief.predictions:
            return Prediction(observation=observation, reward=0.0, terminated=False, logprob=-float("inf"), risk=1.0)
        return belief.predictions[0]

    def believe(self, questions: Sequence[Question]) -> list[Belief]:
        """A belief per question; all that are not known yet share the sampler's batches."""
        return in_background(self.believe_soon(questions)).result()

    async def believe_soon(self, questions: Sequence[Question]) -> list[Belief]:
        """As `believe`, on the loop of `in_background` and nowhere else: calls that run together share batches."""
        prompts = [self.codec.ask_observation(question.situation, question.action) for question in questions]
        answers = {prompt: self.kept[prompt] for prompt in prompts if prompt in self.kept}
        new = {p: q.situation.observation for p, q in zip(prompts, questions, strict=True) if p not in answers}
        if new:
            self.asked += len(new)
            found = dict(zip(new, await self._ask_all(list(new.items())), strict=True))
            self._keep(found)
            answers.update(found)
        return [answers[prompt] for prompt in prompts]

    def _keep(self, found: dict[tuple[int, ...], Belief]) -> None:
        if self.most_kept and len(self.kept) + len(found) > self.most_kept:
            self.kept.clear()
        if self.most_kept:
            self.kept.update(found)

    async def _ask_all(self, new: Sequence[tuple[tuple[int, ...], Observation]]) -> list[Belief]:
        return list(await asyncio.gather(*(self._ask(prompt, like) for prompt, like in new)))

    async def _ask(self, prompt: tuple[int, ...], like: Observation) -> Belief:
        requests = [
            self._request(prompt, self.turn_tokens, seed=self.seed * 1000 + number, greedy=number == 0)
            for number in range(self.samples)
        ]
        answers = await asyncio.gather(*map(self.sampler.sample, requests))
        different = {answer.token_ids: answer for answer in answers}
        counts = {ids: sum(answer.token_ids == ids for answer in answers) for ids in different}
        read = await asyncio.gather(*(self._finish(prompt, answer, like) for answer in different.values()))
        return _belief([(p, counts[ids]) for p, ids in zip(read, different, strict=True)])

    async def _finish(self, prompt: tuple[int, ...], answer: Sampled, like: Observation) -> Prediction | None:
        """The answer as a prediction: the model goes on and says what the step earned, or None if it cannot be read."""
        observation = self.codec.read_observation(answer.token_ids, like) if answer.stopped else None
        if observation is None:
            return None
        request = self._request((*prompt, *answer.token_ids), LONGEST, seed=self.seed, greedy=True)
        told = await self.sampler.sample(request)
        outcome = self.outcome.read(told.token_ids)
        if outcome is None:
            return None
        reward, terminated, success = outcome
        logprob = min(0.0, sum(answer.logprobs) + sum(told.logprobs))
        return Prediction(
            observation=observation, reward=reward, terminated=terminated, success=success, logprob=logprob, risk=1.0
        )

    def _request(self, prompt: tuple[int, ...], limit: int, *, seed: int, greedy: bool) -> TokenRequest:
        return TokenRequest(
            prompt_ids=prompt, max_new_tokens=limit, seed=seed, temperature=0.0 if greedy else 1.0,
            stop_ids=self.codec.stop_ids,
        )  # fmt: skip


def _belief(read: Sequence[tuple[Prediction | None, int]]) -> Belief:
    known = sorted(((p, n) for p, n in read if p is not None), key=lambda pair: -pair[0].logprob)
    predictions = tuple(replace(p, risk=1.0 - math.exp(p.logprob)) for p, _ in known)
    return Belief(predictions, tuple(n for _, n in known), sum(n for p, n in read if p is None))


@functools.cache
def _background() -> asyncio.AbstractEventLoop:
    """One event loop in a thread of its own: a world may be stepped from inside another loop, or from many threads."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="world-model", daemon=True).start()
    return loop


def in_background(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start work on the loop that all models share."""
    return asyncio.run_coroutine_threadsafe(work, _background())


def codec_for(tokenizer: Any) -> Codec:
    """Chat models are spoken to through their template; models of our own in the interleaved format."""
    if getattr(tokenizer, "chat_template", None):
        from terrella.codecs.chat_tokens import ChatCodec

        return ChatCodec(tokenizer)
    return InterleavedCodec(tokenizer)


@functools.lru_cache(maxsize=4)
def load_world_model(folder: Path, *, samples: int = 8, turn_tokens: int = 128) -> LearnedWorldModel:
    """The model in a folder, loaded once: worlds built from one config share it, and what it has been asked."""
    from terrella.engines.sampling.local_sampler import LocalSampler
    from terrella.models.presets import load_model

    model, tokenizer = load_model(str(folder))
    return LearnedWorldModel(
        LocalSampler(model.eval()), codec_for(tokenizer), tokenizer, samples=samples, turn_tokens=turn_tokens
    )
