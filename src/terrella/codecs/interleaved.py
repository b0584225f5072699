"""The token format of small models: one language for world models, agents and self-play.

    <obs> what is seen <end> <act> what is done <end> <obs> what comes next <end> ...
A world model is asked after `<obs>`, an agent after `<act>`; whatever the other side writes is forced between.
    InterleavedCodec(tokenizer).ask_action(situation); codec.read_actions(sampled.token_ids) -> ("Up",)
"""

from __future__ import annotations

from collections.abc import Sequence

from terrella.core.protocols import Tokenizer
from terrella.core.types import Observation, Situation, State, Text, show_text

OBSERVATION, ACTION, END = "<obs>", "<act>", "<end>"
SEPARATOR = "||"


class InterleavedCodec:
    """Observations and actions as marked spans; a span ends with the one stop token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """The tokenizer must know the three marks as single tokens."""
        self.tokenizer = tokenizer
        self.stop_ids: tuple[int, ...] = (self._mark(END),)
        self._observation, self._action = self._mark(OBSERVATION), self._mark(ACTION)
        self.allowed_ids: tuple[int, ...] | None = None
        self.open_action: tuple[int, ...] = (self._action,)
        """What stands between an observation and the action that follows it."""

    def _mark(self, mark: str) -> int:
        (token_id,) = self.tokenizer.encode(mark, add_special_tokens=False)
        return token_id

    def _span(self, mark: int, text: str) -> tuple[int, ...]:
        return (mark, *self.tokenizer.encode(text, add_special_tokens=False), *self.stop_ids)

    def shown(self, text: str) -> tuple[int, ...]:
        """What the world shows, as a closed span."""
        return self._span(self._observation, text)

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        """What is seen, and an open action."""
        return (*self.shown(show_text(situation.observation)), *self.open_action)

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        """What is seen, what is done, and an open observation."""
        seen = self.shown(show_text(situation.observation))
        return (*seen, *self._span(self._action, action), self._observation)

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> tuple[int, ...]:
        """What the world forces after a turn; the same words as a question."""
        return (*(self.stop_ids if cut_off else ()), *self.ask_action(situation))

    def answer_action(self, actions: Sequence[str]) -> tuple[int, ...]:
        """The ids of a reply that does this: what SFT trains on."""
        return (*self.tokenizer.encode(SEPARATOR.join(actions), add_special_tokens=False), *self.stop_ids)

    def answer_observation(self, observation: Observation) -> tuple[int, ...]:
        """The ids of a reply that predicts this."""
        return (*self.tokenizer.encode(show_text(observation), add_special_tokens=False), *self.stop_ids)

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The actions of a finished reply; an unfinished one has none."""
        text = self._finished(token_ids)
        return tuple(part.strip() for part in text.split(SEPARATOR) if part.strip()) if text else ()

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """The predicted observation, of the same kind as `like`; None for an unfinished reply."""
        text = self._finished(token_ids)
        if text is None:
            return None
        return State(text) if isinstance(like, State) else Text(text)

    def go_on(self, action: str) -> tuple[int, ...]:
        """What is forced after a predicted observation: what is done next, and an open observation."""
        return (*self._span(self._action, action), self._observation)

    def read_rollout(self, situation: Situation, replies: Sequence[Sequence[int]]) -> list[Observation | None]:
        """The predicted observations, of the same kind as the one they began with."""
        return [self.read_observation(reply, like=situation.observation) for reply in replies]

    def write(self, text: str) -> list[int]:
        """Words inside a reply."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, token_ids: Sequence[int]) -> str:
        """A reply's text, marks included."""
        return self.tokenizer.decode(list(token_ids))

    def _finished(self, token_ids: Sequence[int]) -> str | None:
        if not token_ids or token_ids[-1] not in self.stop_ids:
            return None
        return self.tokenizer.decode(list(token_ids[:-1]))
