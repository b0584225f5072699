"""Codec of video world models: frames and numeric actions as token ids.

    <start> context frame | frame | action | frame | action | frame ...
The context frame is the first frame of the episode; every other frame is encoded as its difference
from it. A tokenizer that encodes every frame by itself has no context. The model generates frames,
always with the same number of ids and without a stop token; actions are forced between them. With
`joint` the ids and their order are those of RLVR-World's published models: frame codes first, then
context codes, then bins that all dimensions of an action share, then two special ids; `<start>`
stands only before a frame that has no context.
    codec = FrameCodec(tokenizer, bins, window=7)
    prompt = codec.ask_observation(situation, "+0.50 -1.00")
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import ConfigError
from terrella.core.types import Frames, Observation, Situation, Transition
from terrella.models.action_bins import ActionBins

PAD, START = 0, 1
SPECIAL_IDS = 2
JOINT_BINS = 256
"""Ids of actions in a joint vocabulary; all numbers of an action share them."""
MAX_CACHED_FRAMES = 200_000
"""Size limit of the id cache; a full cache is cleared, and frames are encoded again as needed."""


class VideoTokenizer(Protocol):
    """The interface of a frame tokenizer."""

    codes: int
    """Number of different codes."""
    tokens_per_frame: int
    tokens_per_context: int

    def write(
        self, frames: NDArray[np.uint8], context: NDArray[np.uint8]
    ) -> tuple[list[int], list[list[int]]]:
        """Codes of a context frame and of frames that follow it."""
        ...

    def read(self, context: NDArray[np.uint8], ids: Sequence[Sequence[int]]) -> NDArray[np.uint8]:
        """Decode the codes of frames."""
        ...


class FrameCodec:
    """`core.protocols.RolloutCodec` over a frame tokenizer; see the module's docstring.

    The vocabulary is: special ids, context codes, frame codes, action bins, in this order; in a
    joint vocabulary frame codes, context codes, action bins, special ids.
    """

    stop_ids: tuple[int, ...] = ()

    def __init__(
        self,
        tokenizer: VideoTokenizer,
        bins: ActionBins,
        window: int = 7,
        *,
        joint: bool = False,
    ) -> None:
        """`window` is the number of frames before the last one in a prompt, beside the context."""
        self.tokenizer = tokenizer
        self.bins = bins
        self.window = window
        self.joint = joint
        self.frame_tokens = tokenizer.tokens_per_frame
        self.context_tokens = tokenizer.tokens_per_context
        context_codes = tokenizer.codes if self.context_tokens else 0
        if joint:
            self.first_frame, self.first_context = 0, tokenizer.codes
            self.first_action = tokenizer.codes + context_codes
            if bins.bins > JOINT_BINS:
                what = f"a joint vocabulary has {JOINT_BINS} ids for actions, not {bins.bins}"
                raise ConfigError("bins", what)
            self.start = self.first_action + JOINT_BINS
            self.pad = self.start + 1
            self.vocabulary = self.pad + 1
        else:
            self.pad, self.start = PAD, START
            self.first_context = SPECIAL_IDS
            self.first_frame = SPECIAL_IDS + context_codes
            self.first_action = self.first_frame + tokenizer.codes
            self.vocabulary = self.first_action + bins.size * bins.bins
        self.end_frame = self.first_frame + tokenizer.codes
        self.allowed_ids: tuple[int, ...] | None = tuple(range(self.first_frame, self.end_frame))
        # By digest and not by frame: a cache of ids must not hold the pixels of a dataset.
        self._contexts: dict[bytes, NDArray[np.int32]] = {}
        self._frames: dict[bytes, NDArray[np.int32]] = {}

    # --- frames -----------------------------------------------------------------------------------

    def cache_frames(self, video: Sequence[Frames]) -> None:
        """Encode a whole video in one batch; its first frame is its context."""
        if len(self._frames) > MAX_CACHED_FRAMES:
            self._frames.clear()
            self._contexts.clear()
        context, *_ = video
        about = _digest(context)
        keys = {about + _digest(frame): frame for frame in video}
        new = {key: frame for key, frame in keys.items() if key not in self._frames}
        if not new and about in self._contexts:
            return
        images = np.stack([frame.array[-1] for frame in new.values() or [context]])
        context_codes, frame_codes = self.tokenizer.write(images, context.array[-1])
        self._contexts[about] = np.array(context_codes, np.int32) + self.first_context
        for key, codes in zip(new, frame_codes, strict=False):
            self._frames[key] = np.array(codes, np.int32) + self.first_frame

    def frame_ids(self, frame: Frames, context: Frames) -> tuple[int, ...]:
        """Ids of a frame in a video that begins with `context`.

        For a frame that a model generated, these are the generated ids.
        """
        key = _digest(context) + _digest(frame)
        if key not in self._frames:
            self.cache_frames([context, frame])
        return tuple(self._frames[key].tolist())

    def context_ids(self, context: Frames) -> tuple[int, ...]:
        """Ids of a context frame."""
        key = _digest(context)
        if key not in self._contexts:
            self.cache_frames([context])
        return tuple(self._contexts[key].tolist())

    def context_digest(self, situation: Situation) -> bytes:
        """Tells context frames apart by their pixels; different frames may have the same ids."""
        return _digest(_video(situation)[1])

    # --- world models -----------------------------------------------------------------------------

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        """Prompt: the context, the last frames with the action after each, and this action."""
        frames, context = _video(situation)
        actions = [*(step.action for step in situation.history), action]
        first = max(0, len(frames) - 1 - self.window)
        ids = [] if self.joint else [self.start]
        if self.context_tokens:
            ids += self.context_ids(context)
        for frame, frame_action in zip(frames[first:], actions[first:], strict=True):
            ids += [*self.frame_ids(frame, context), *self.go_on(frame_action)]
        return (*ids, self.start) if self.joint and not self.context_tokens else tuple(ids)

    def go_on(self, action: str) -> tuple[int, ...]:
        """Ids of an action, which are forced between two frames."""
        try:
            numbers = [float(part) for part in action.split()]
            codes = self.bins.numbers(numbers) if self.joint else self.bins.write(numbers)
            return tuple(self.first_action + code for code in codes)
        except ValueError as error:
            raise ConfigError("action", f"{action!r} is not {self.bins.size} numbers") from error

    def answer_observation(
        self, observation: Observation, context: Observation | None = None
    ) -> tuple[int, ...]:
        """Ids of a frame; without a `context`, the frame is its own context."""
        return self.frame_ids(_frames(observation), _frames(context or observation))

    def read_rollout(
        self, situation: Situation, replies: Sequence[Sequence[int]]
    ) -> list[Observation | None]:
        """Decode the predicted frames; None for a reply that is not exactly one frame."""
        _, context = _video(situation)
        valid = [index for index, reply in enumerate(replies) if self._is_frame(reply)]
        frames: list[Observation | None] = [None] * len(replies)
        if not valid:
            return frames
        codes = [[token - self.first_frame for token in replies[index]] for index in valid]
        images = self.tokenizer.read(context.array[-1], codes)
        for index, image in zip(valid, images, strict=True):
            frame = Frames.of(image[None])
            # Token in, token out: the frame is never encoded again.
            key = _digest(context) + _digest(frame)
            self._frames[key] = np.array(replies[index], np.int32)
            frames[index] = frame
        return frames

    def _is_frame(self, reply: Sequence[int]) -> bool:
        return len(reply) == self.frame_tokens and all(
            self.first_frame <= token < self.end_frame for token in reply
        )

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """Decode one predicted frame whose context is `like`."""
        situation = Situation(
            instruction="", observation=like, actions=(), history=(), steps_left=1
        )
        return self.read_rollout(situation, [token_ids])[0]

    # --- a video model does not act ---------------------------------------------------------------

    def ask_action(self, situation: Situation) -> NoReturn:
        raise ConfigError("codec", "a video model predicts frames; it is not asked for actions")

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> NoReturn:
        self.ask_action(situation)

    def answer_action(self, actions: Sequence[str]) -> NoReturn:
        raise ConfigError("codec", "a video model predicts frames; it is not asked for actions")

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        return ()


def _digest(frame: Frames) -> bytes:
    return hashlib.blake2b(frame.data, digest_size=16).digest()


def _frames(observation: Observation) -> Frames:
    if not isinstance(observation, Frames):
        raise ConfigError("codec", f"a video model needs frames, not {observation.kind}")
    return observation


def _video(situation: Situation) -> tuple[list[Frames], Frames]:
    """All frames of the episode so far, and the first of them."""
    history: Sequence[Transition] = situation.history
    frames = [*(_frames(step.observation) for step in history), _frames(situation.observation)]
    return frames, frames[0]
