"""Frames and numeric actions as token ids: the codec of video world models.

    <start> context frame | frame | action | frame | action | frame ...
The context frame is the one that the episode began with; every later frame is written as what changed since. A model
writes frames, always of the same number of ids and without an end mark; actions are forced between them.
    codec = FrameCodec(tokenizer, bins, window=7); codec.ask_observation(situation, "+0.50 -1.00")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import ConfigError
from terrella.core.types import Frames, Observation, Situation, Transition
from terrella.models.action_bins import ActionBins

PAD, START = 0, 1
MARKS = 2
MOST_KEPT = 200_000
"""Frames whose ids are remembered; past it all are forgotten and encoded again when needed."""


class Pictures(Protocol):
    """What the codec needs of a frame tokenizer."""

    codes: int
    places: int
    """Ids of a frame."""
    context_places: int
    """Ids of a context frame."""

    def write(self, frames: NDArray[np.uint8], context: NDArray[np.uint8]) -> tuple[list[int], list[list[int]]]:
        """Ids of a context frame and of frames after it."""
        ...

    def read(self, context: NDArray[np.uint8], ids: Sequence[Sequence[int]]) -> NDArray[np.uint8]:
        """Frames of ids."""
        ...


class FrameCodec:
    """See the module's docstring. Ids: marks, context codes, frame codes, action bins, in this order."""

    stop_ids: tuple[int, ...] = ()

    def __init__(self, tokenizer: Pictures, bins: ActionBins, window: int = 7) -> None:
        """`window` is how many frames before the last one a prompt holds, beside the context."""
        self.tokenizer, self.bins, self.window = tokenizer, bins, window
        self.first_frame = MARKS + tokenizer.codes
        self.first_action = self.first_frame + tokenizer.codes
        self.vocabulary = self.first_action + bins.size * bins.bins
        self.frame_tokens, self.context_tokens = tokenizer.places, tokenizer.context_places
        self.allowed_ids: tuple[int, ...] | None = tuple(range(self.first_frame, self.first_action))
        self._contexts: dict[Frames, tuple[int, ...]] = {}
        self._frames: dict[tuple[Frames, Frames], tuple[int, ...]] = {}

    # --- frames -----------------------------------------------------------------------------------------------------

    def remember(self, film: Sequence[Frames]) -> None:
        """Write a whole film at once: faster than frame by frame. Its first frame is its context."""
        if len(self._frames) > MOST_KEPT:
            self._frames.clear()
            self._contexts.clear()
        context, *_ = film
        new = [frame for frame in dict.fromkeys(film) if (context, frame) not in self._frames]
        if not new and context in self._contexts:
            return
        pictures = np.stack([frame.array[-1] for frame in new or [context]])
        context_ids, ids = self.tokenizer.write(pictures, context.array[-1])
        self._contexts[context] = tuple(MARKS + one for one in context_ids)
        for frame, found in zip(new, ids, strict=False):
            self._frames[context, frame] = tuple(self.first_frame + one for one in found)

    def frame_ids(self, frame: Frames, context: Frames) -> tuple[int, ...]:
        """The ids of a frame of a film that began with `context`; those a model wrote, if a model wrote it."""
        if (context, frame) not in self._frames:
            self.remember([context, frame])
        return self._frames[context, frame]

    def context_ids(self, context: Frames) -> tuple[int, ...]:
        """The ids of a context frame."""
        if context not in self._contexts:
            self.remember([context])
        return self._contexts[context]

    # --- world models -----------------------------------------------------------------------------------------------

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        """The context, the last frames with what was done after each, and this action."""
        seen, context = _film(situation)
        done = [*(step.action for step in situation.history), action]
        first = max(0, len(seen) - 1 - self.window)
        ids = [START, *self.context_ids(context)]
        for frame, what in zip(seen[first:], done[first:], strict=True):
            ids += [*self.frame_ids(frame, context), *self.go_on(what)]
        return tuple(ids)

    def go_on(self, action: str) -> tuple[int, ...]:
        """The forced ids of an action."""
        try:
            numbers = [float(part) for part in action.split()]
            return tuple(self.first_action + one for one in self.bins.write(numbers))
        except ValueError as error:
            raise ConfigError("action", f"{action!r} is not {self.bins.size} numbers") from error

    def answer_observation(self, observation: Observation, context: Observation | None = None) -> tuple[int, ...]:
        """The ids of a frame; by default of one that is its own context."""
        return self.frame_ids(_frames(observation), _frames(context or observation))

    def read_rollout(self, situation: Situation, replies: Sequence[Sequence[int]]) -> list[Observation | None]:
        """The predicted frames. A reply that is not exactly a frame's ids cannot be read."""
        _, context = _film(situation)
        good = [place for place, reply in enumerate(replies) if self._is_frame(reply)]
        found: list[Observation | None] = [None] * len(replies)
        if good:
            ids = [[one - self.first_frame for one in replies[place]] for place in good]
            for place, picture in zip(good, self.tokenizer.read(context.array[-1], ids), strict=True):
                frame = Frames.of(picture[None])
                self._frames[context, frame] = tuple(replies[place])  # token in, token out: never encoded again
                found[place] = frame
        return found

    def _is_frame(self, reply: Sequence[int]) -> bool:
        return len(reply) == self.frame_tokens and all(self.first_frame <= one < self.first_action for one in reply)

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """As `read_rollout`, for a frame whose context is `like`."""
        situation = Situation(instruction="", observation=like, actions=(), history=(), steps_left=1)
        return self.read_rollout(situation, [token_ids])[0]

    # --- a video model does not act -----------------------------------------------------------------------------------

    def ask_action(self, situation: Situation) -> NoReturn:
        """Refused."""
        raise ConfigError("codec", "a video model predicts frames; it is not asked for actions")

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> NoReturn:
        """Refused."""
        self.ask_action(situation)

    def answer_action(self, actions: Sequence[str]) -> NoReturn:
        """Refused."""
        raise ConfigError("codec", "a video model predicts frames; it is not asked for actions")

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """None."""
        return ()


def _frames(observation: Observation) -> Frames:
    if not isinstance(observation, Frames):
        raise ConfigError("codec", f"a video model is shown frames, not {observation.kind}")
    return observation


def _film(situation: Situation) -> tuple[list[Frames], Frames]:
    """All frames up to now, and the first of them."""
    history: Sequence[Transition] = situation.history
    seen = [*(_frames(step.observation) for step in history), _frames(situation.observation)]
    return seen, seen[0]
