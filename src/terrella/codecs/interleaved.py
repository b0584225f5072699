"""Token format of small models, the same for world models, agents and self-play.

    <obs> observation <end> <act> action <end> <obs> next observation <end> ...
A world model generates after `<obs>`, an agent after `<act>`; everything else is forced.
    codec = InterleavedCodec(tokenizer)
    prompt = codec.ask_action(situation)
    codec.read_actions(sampled.token_ids) == ("Up",)
"""

from __future__ import annotations

from collections.abc import Sequence

from terrella.codecs.answers import join_actions, split_actions
from terrella.codecs.escape import PlainWriter
from terrella.core.errors import ConfigError
from terrella.core.protocols import Tokenizer
from terrella.core.tokens import History
from terrella.core.types import Observation, Situation, same_kind, show_text

OBSERVATION, ACTION, END = "<obs>", "<act>", "<end>"


class InterleavedCodec:
    """Observations and actions as tagged spans, each closed by the one stop token."""

    opens_thought = False
    thought_marks = ("", "")

    def __init__(self, tokenizer: Tokenizer) -> None:
        """The tokenizer must have the three tags as single tokens."""
        self.tokenizer = tokenizer
        self._observation, self._action, end = _marks(tokenizer)
        self._writer = PlainWriter(tokenizer)
        self.stop_ids: tuple[int, ...] = (end,)
        self.allowed_ids: tuple[int, ...] | None = None
        self.open_action: tuple[int, ...] = (self._action,)
        """The tokens between an observation and the action that follows it."""

    def _span(self, mark: int, text: str) -> tuple[int, ...]:
        return (mark, *self.write(text), *self.stop_ids)

    def shown(self, text: str) -> tuple[int, ...]:
        """An observation as a closed span."""
        return self._span(self._observation, text)

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        """Prompt of an agent: the observation, and an open action span."""
        return (*self.shown(show_text(situation.observation)), *self.open_action)

    def ask_turn(self, situation: Situation, history: History) -> tuple[int, ...]:
        """The prompt of any turn: earlier spans, then that of `ask_action`."""
        earlier: list[int] = []
        for step in situation.history:
            if history != "actions":
                earlier += self.shown(show_text(step.observation))
            earlier += self._span(self._action, step.action)
        return (*earlier, *self.ask_action(situation))

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        """Prompt of a world model: the observation, the action, and an open observation span."""
        observation = self.shown(show_text(situation.observation))
        return (*observation, *self.go_on(action))

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> tuple[int, ...]:
        """The tokens that the world forces after a reply; the same as a prompt."""
        return (*(self.stop_ids if cut_off else ()), *self.ask_action(situation))

    def answer_action(self, actions: Sequence[str]) -> tuple[int, ...]:
        """The reply with these actions, as an SFT target."""
        return (*self.write(join_actions(actions, blank="")), *self.stop_ids)

    def answer_observation(self, observation: Observation) -> tuple[int, ...]:
        """The reply that predicts this observation, as an SFT target."""
        return (*self.write(show_text(observation)), *self.stop_ids)

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The actions of a finished reply; an unfinished one has none."""
        text = self._finished(token_ids)
        return split_actions(text) if text else ()

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """The predicted observation, of the same kind as `like`; None for an unfinished reply."""
        text = self._finished(token_ids)
        return None if text is None else same_kind(like, text)

    def go_on(self, action: str) -> tuple[int, ...]:
        """The tokens forced after a predicted observation: the action, and an open observation."""
        return (*self._span(self._action, action), self._observation)

    def read_rollout(
        self, situation: Situation, replies: Sequence[Sequence[int]]
    ) -> list[Observation | None]:
        """The predicted observations, of the same kind as the situation's."""
        return [self.read_observation(reply, like=situation.observation) for reply in replies]

    def read_thought(self, token_ids: Sequence[int]) -> None:
        """There are no thoughts in this format."""

    def write(self, text: str) -> list[int]:
        """Tokenize text inside a span; special tokens in it are spelt with a space."""
        return self._writer.write(text)

    def targets(self, reply: Sequence[int]) -> tuple[bool, ...]:
        """SFT trains all tokens of a reply."""
        return (True,) * len(reply)

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode a reply, tags included."""
        return self.tokenizer.decode(list(token_ids))

    def _finished(self, token_ids: Sequence[int]) -> str | None:
        if not token_ids or token_ids[-1] not in self.stop_ids:
            return None
        return self.tokenizer.decode(list(token_ids[:-1]))


def _marks(tokenizer: Tokenizer) -> list[int]:
    """The ids of the three tags; refuses a tokenizer that has not got them as single tokens."""
    marks = (OBSERVATION, ACTION, END)
    found = [tokenizer.encode(mark, add_special_tokens=False) for mark in marks]
    ids = [each[0] for each in found if len(each) == 1]
    if len(set(ids)) < len(marks):  # one id for several is that of unknown words
        raise ConfigError(
            str(getattr(tokenizer, "name_or_path", "") or "the model"),
            f"has neither a chat template nor the tokens {', '.join(marks)}, so nothing can be "
            "asked of it",
            "name a chat model (an instruct or chat version), or a model from scratch such as "
            "tiny-1m; `terrella sft` on pairs of prompt and completion takes any model",
        )
    return ids
