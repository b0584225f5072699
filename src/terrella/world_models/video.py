"""A video world model as a `WorldModel`: it predicts frame by frame, a classifier detects success.

Behind `ImaginedWorld`, any policy that acts on frames can be played in it; `evaluate_policy` plays
many episodes as one batch. The token ids of imagined frames are cached, so that an imagined frame
is never encoded again.
    model = VideoWorldModel(sampler, codec, succeeded)
    world = imagined_video_world(Tabletop.Config(task="push"), model)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from terrella.codecs.choose import CodecConfig
from terrella.codecs.frames import FrameCodec
from terrella.core.config import Local, record_from_json
from terrella.core.integrity import (
    MAKE_AGAIN,
    content_sha256,
    file_sha256,
    folder_sha256,
    read_sealed,
)
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import Sampler, WorldModel
from terrella.core.seeds import SAMPLE_STREAM, stream
from terrella.core.tokens import Sampled, TokenEpisode, TokenRequest
from terrella.core.types import Frames, Observation, Prediction
from terrella.core.world import World
from terrella.models.action_bins import ActionBins
from terrella.trust.nearness import NearestData
from terrella.trust.risk import RiskEstimator
from terrella.world_models.background import run_in_background
from terrella.world_models.certified import CertifiedModel
from terrella.world_models.imagine import ImaginedWorld, imagine

Classifier = Callable[[NDArray[np.uint8]], NDArray[np.bool_]]
CACHE_LIMIT, CACHE_BYTES = 100_000, 2**30
"""Imagined frames that are kept, and their pixels; one of 256 x 320 is a quarter of a megabyte."""
BINS = "actions.json"
MADE_WITH = "made_with"
"""The key in it that holds the settings of the bins; models need the bins alone."""
T = TypeVar("T")
Key = tuple[tuple[int, ...], bytes]
"""A prompt, and the digest of the context frame: its pixels are drawn upon, not only its ids."""


class VideoWorldModel:
    """Samples one frame per query; the same query always gets the same frame."""

    def __init__(
        self,
        sampler: Sampler,
        codec: FrameCodec,
        succeeded: Classifier,
        *,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        """`succeeded` tells for frames (N, H, W, 3) which of them show success.

        Success ends the episode with reward 1.
        """
        self.sampler = sampler
        self.codec = codec
        self.succeeded = succeeded
        self.temperature = temperature
        self.seed = seed
        self.cache: dict[Key, PredictiveDistribution] = {}
        self._cached_bytes = 0

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        """A distribution of one prediction per query; new queries share the sampler's batches."""
        if len(self.cache) > CACHE_LIMIT or self._cached_bytes > CACHE_BYTES:
            self.cache.clear()
            self._cached_bytes = 0
        keys = [self._key(query) for query in queries]
        new = {
            key: query for key, query in zip(keys, queries, strict=True) if key not in self.cache
        }
        if new:
            sampled = run_in_background(self._sample([prompt for prompt, _ in new])).result()
            imagined = self._read(list(new.values()), sampled)
            self.cache.update(zip(new, imagined, strict=True))
            self._cached_bytes += sum(map(_bytes, imagined))
        return [self.cache[key] for key in keys]

    def _key(self, query: Query) -> Key:
        prompt = self.codec.ask_observation(query.situation, query.action)
        return prompt, self.codec.context_digest(query.situation)

    async def _sample(self, prompts: Sequence[tuple[int, ...]]) -> list[Sampled]:
        return list(
            await asyncio.gather(
                *(self.sampler.sample(self._request(prompt)) for prompt in prompts)
            )
        )

    def _request(self, prompt: tuple[int, ...]) -> TokenRequest:
        rng = stream(SAMPLE_STREAM, self.seed, len(prompt), *prompt)
        return TokenRequest(
            prompt_ids=prompt,
            max_new_tokens=self.codec.frame_tokens,
            seed=int(rng.integers(2**62)),
            temperature=self.temperature,
            allowed_ids=self.codec.allowed_ids,
        )

    def _read(
        self, queries: Sequence[Query], sampled: Sequence[Sampled]
    ) -> list[PredictiveDistribution]:
        frames = [
            self.codec.read_rollout(query.situation, [completion.token_ids])[0]
            for query, completion in zip(queries, sampled, strict=True)
        ]
        images = [frame.array[-1] for frame in frames if isinstance(frame, Frames)]
        successes = iter(self.succeeded(np.stack(images)) if images else ())
        return [
            _distribution(frame, completion, bool(next(successes)))
            if frame
            else PredictiveDistribution((), (), 1)
            for frame, completion in zip(frames, sampled, strict=True)
        ]


def _bytes(imagined: PredictiveDistribution) -> int:
    frames = [prediction.observation for prediction in imagined.predictions]
    return sum(len(frame.data) for frame in frames if isinstance(frame, Frames))


def _distribution(frame: Observation, completion: Sampled, success: bool) -> PredictiveDistribution:
    # There is only one prediction, so it has probability 1; its risk is the model's uncertainty.
    mean_probability = float(np.exp(sum(completion.logprobs) / len(completion.logprobs)))
    prediction = Prediction(
        observation=frame,
        reward=float(success),
        terminated=success,
        success=success,
        logprob=0.0,
        risk=1.0 - mean_probability,
    )
    return PredictiveDistribution((prediction,), (1,))


def imagined_video_world(world: World.Config, model: WorldModel) -> ImaginedWorld:
    """The imagined counterpart of a world, with a model in memory.

    It is not certified: every step has risk 1.
    """
    estimator = RiskEstimator(model, NearestData(()), None)
    return imagine(world, certified_model=CertifiedModel(estimator))


@dataclass(frozen=True, kw_only=True)
class FrameCodecConfig(CodecConfig):
    """The codec of a folder written by `TrainTokenizer`; the language tokenizer is not needed."""

    folder: Local[Path]
    window: int = 0
    joint: bool = False

    def make(self, tokenizer: Any) -> FrameCodec:
        return read_codec(self.folder, window=self.window, joint=self.joint)


def read_codec(folder: Path, *, window: int, joint: bool = False) -> FrameCodec:
    """Load the codec (tokenizer and action bins) of a folder written by `TrainTokenizer`."""
    from terrella.models.frame_tokenizers import load_frame_tokenizer

    content = read_sealed(folder / BINS, MAKE_AGAIN)
    bins = record_from_json(ActionBins, {k: v for k, v in content.items() if k != MADE_WITH})
    tokenizer = load_frame_tokenizer(folder / "tokenizer")
    return FrameCodec(tokenizer, bins, window=window, joint=joint)


def codec_sha256(folder: Path) -> str:
    """One hash for what `read_codec` reads."""
    bins = folder / BINS
    return content_sha256(
        {
            "bins": file_sha256(bins) if bins.is_file() else None,
            "tokenizer": folder_sha256(folder / "tokenizer"),
        }
    )


def generated_frames(episode: TokenEpisode) -> list[tuple[int, ...]]:
    """The token ids of each frame that the model generated, without the forced actions."""
    return generated_by_turn(episode, episode.completion_ids)


def generated_by_turn(episode: TokenEpisode, column: Sequence[T]) -> list[tuple[T, ...]]:
    """The values of a token column where the model generated, one tuple per turn."""
    starts = [0, *episode.turn_ends[:-1]]
    turns = []
    for start, end in zip(starts, episode.turn_ends, strict=True):
        pairs = zip(column[start:end], episode.model_mask[start:end], strict=True)
        turns.append(tuple(value for value, generated in pairs if generated))
    return turns
