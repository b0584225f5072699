"""An agent's episode cut into turns: each reply with the true states before and after it.

Training examples, rewards and metrics all read an episode this way.
    for turn in turns(episode, codec, max_actions=5): turn.reply, turn.before, turn.after
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from terrella.codecs.tagged import TaggedCodec
from terrella.core.tokens import TokenEpisode
from terrella.core.types import Transition, show_text


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of an episode and what it did to the world."""

    start: int
    """Where the reply begins in the completion; what the world forced stands before it."""
    end: int
    reply: tuple[int, ...]
    steps: tuple[Transition, ...]

    @property
    def before(self) -> str:
        """What was seen when the reply was written."""
        return show_text(self.steps[0].observation)

    @property
    def states(self) -> list[str]:
        """What was seen before the actions and after each of them."""
        return [self.before, *(show_text(step.next_observation) for step in self.steps)]

    @property
    def after(self) -> str:
        """What was seen when its actions were done."""
        return show_text(self.steps[-1].next_observation)


def turns(episode: TokenEpisode, codec: TaggedCodec, *, max_actions: int) -> list[Turn]:
    """The replies of an episode, each with the transitions that its actions caused.

    None for a broken one.
    """
    if episode.record is None:
        return []
    steps = iter(episode.record.transitions)
    found, before = [], 0
    for end in episode.turn_ends:
        start = next(place for place in range(before, end) if episode.model_mask[place])
        reply = episode.completion_ids[start:end]
        asked = len(codec.read_actions(reply)[:max_actions]) or 1  # no action is one invalid action
        found.append(Turn(start, end, reply, tuple(itertools.islice(steps, asked))))
        before = end
    return found
