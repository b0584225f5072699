"""A video world model as a `Believer`: frames imagined one after another, success seen by a learned classifier.

Behind `ImaginedWorld` any policy that acts on frames can be played in it; `evaluate_policy` plays many episodes at
once. What the model wrote is remembered as ids: a frame that it imagined is never encoded again.
    world = dream(Tabletop.Config(task="push"), VideoWorldModel(sampler, codec, succeeded))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from terrella.codecs.frames import FrameCodec
from terrella.core.protocols import Sampled, Sampler, TokenRequest
from terrella.core.types import Frames, Observation, Prediction
from terrella.core.world import World
from terrella.trust.beliefs import Belief, Question
from terrella.trust.nearness import NearestData
from terrella.trust.risk import Assessor
from terrella.use.imagine import Imagination, ImaginedWorld, imagine

Classifier = Callable[[NDArray[np.uint8]], NDArray[np.bool_]]
MOST_KEPT = 100_000


class VideoWorldModel:
    """One sampled frame per question; the same question always gets the same frame."""

    def __init__(
        self, sampler: Sampler, codec: FrameCodec, succeeded: Classifier, *, temperature: float = 1.0, seed: int = 0
    ) -> None:
        """`succeeded` says of frames (N, H, W, 3) which show a success: that ends the episode, with reward 1."""
        self.sampler, self.codec, self.succeeded = sampler, codec, succeeded
        self.temperature, self.seed = temperature, seed
        self.kept: dict[tuple[int, ...], Belief] = {}

    def believe(self, questions: Sequence[Question]) -> list[Belief]:
        """A belief of one prediction for each question; all that are new share the sampler's batches."""
        if len(self.kept) > MOST_KEPT:
            self.kept.clear()
        prompts = [self.codec.ask_observation(question.situation, question.action) for question in questions]
        new = {prompt: q for prompt, q in zip(prompts, questions, strict=True) if prompt not in self.kept}
        if new:
            sampled = asyncio.run(self._sample(list(new)))
            self.kept.update(zip(new, self._read(list(new.values()), sampled), strict=True))
        return [self.kept[prompt] for prompt in prompts]

    async def _sample(self, prompts: Sequence[tuple[int, ...]]) -> list[Sampled]:
        return list(await asyncio.gather(*(self.sampler.sample(self._request(prompt)) for prompt in prompts)))

    def _request(self, prompt: tuple[int, ...]) -> TokenRequest:
        return TokenRequest(
            prompt_ids=prompt, max_new_tokens=self.codec.frame_tokens, seed=hash((self.seed, prompt)) % 2**62,
            temperature=self.temperature, allowed_ids=self.codec.allowed_ids,
        )  # fmt: skip

    def _read(self, questions: Sequence[Question], sampled: Sequence[Sampled]) -> list[Belief]:
        frames = [
            self.codec.read_rollout(question.situation, [answer.token_ids])[0]
            for question, answer in zip(questions, sampled, strict=True)
        ]
        pictures = np.stack([frame.array[-1] for frame in frames if isinstance(frame, Frames)])
        won = iter(self.succeeded(pictures))
        rows = zip(frames, sampled, strict=True)
        return [_belief(frame, answer, bool(next(won))) if frame else Belief((), (), 1) for frame, answer in rows]


def _belief(frame: Observation, answer: Sampled, won: bool) -> Belief:
    # Chances say which prediction is drawn; there is one. How sure the model was of it is its risk.
    doubt = 1.0 - float(np.exp(sum(answer.logprobs) / len(answer.logprobs)))
    said = Prediction(observation=frame, reward=float(won), terminated=won, success=won, logprob=0.0, risk=doubt)
    return Belief((said,), (1,))


def dream(world: World.Config, model: VideoWorldModel) -> ImaginedWorld:
    """The imagined twin of a world, from a model in memory. It is not certified: every step is a full risk."""
    return imagine(world, imagination=Imagination(Assessor(model, NearestData(()), None)))
