"""Codec for chat models: works with any Hugging Face chat template, token in and token out.

Replies are never tokenized again. The template renders a conversation with a marker in the place of
a reply; the tokens it writes after the marker are what follows a real reply, whose sampled ids stay
as they are, thoughts included (`ChatTemplate.after_reply`).
    codec = ChatCodec(tokenizer, max_actions=5)
    prompt = codec.ask_action(situation)
    actions = codec.read_actions(sampled.token_ids)
    next_turn = codec.world_turn(situation)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from terrella.codecs.answers import (
    answer_text,
    join_actions,
    read_answer,
    read_prediction,
    split_reply,
)
from terrella.codecs.chat import (
    chat_messages,
    prediction_messages,
    reply_form,
    state_message,
)
from terrella.codecs.chat_template import ChatTemplate, Thinking
from terrella.core.errors import ConfigError
from terrella.core.tokens import History
from terrella.core.types import Observation, Situation, State, same_kind, show_text


class ChatCodec:
    """`core.protocols.Codec` over a tokenizer with a chat template."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_actions: int = 1,
        form: str | None = None,
        thinking: Thinking = "auto",
    ) -> None:
        """`max_actions` and `form` go into the prompt; give the rollout the same `max_actions`.

        Without a `form`, the prompt asks for an answer, and for a thought where the model thinks.
        """
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, thinking=thinking)
        self.thinks = self.template.thinks
        self.opens_thought = self.template.opens_thought
        self.thought_marks = self.template.thought_marks
        self.max_actions = max_actions
        self.form = form or reply_form(thinks=self.thinks)
        self.stop_ids: tuple[int, ...] = self.template.stop_ids
        self._no_thought = tuple(self.write("".join(self.thought_marks)))

    # --- prompts ----------------------------------------------------------------------------------

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        """Prompt of an agent: rules, reply format and observations, up to the generation prompt."""
        return self.template.prompt(chat_messages(situation, self.max_actions, self.form))

    def ask_turn(self, situation: Situation, history: History) -> tuple[int, ...]:
        """The prompt of any turn; earlier replies are their actions, without thoughts."""
        messages = chat_messages(
            situation, self.max_actions, self.form, shows_earlier=history != "actions"
        )
        return self.template.prompt(messages)

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        """Prompt of a world model: the observation and the action."""
        return self.template.prompt(prediction_messages(situation, action, thinks=self.thinks))

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> tuple[int, ...]:
        """The template's tokens between the end of one reply and the start of the next.

        A reply that was cut off, or ended by another stop id, has not ended its turn: the end token
        comes first.
        """
        state = state_message(show_text(situation.observation), situation.steps_left)
        end, *rest = self.template.after_reply([state])
        return (end, *rest) if cut_off else tuple(rest)

    # --- replies ----------------------------------------------------------------------------------

    def answer_action(
        self, actions: Sequence[str], *, thought: str | None = None
    ) -> tuple[int, ...]:
        """The canonical reply with these actions, after the thought if one is given."""
        return self._reply_ids(answer_text(join_actions(actions)), thought)

    def answer_observation(
        self, observation: Observation, *, thought: str | None = None
    ) -> tuple[int, ...]:
        """The canonical reply that predicts this observation."""
        return self._reply_ids(answer_text(show_text(observation), blank="\n"), thought)

    def targets(self, reply: Sequence[int]) -> tuple[bool, ...]:
        """The tokens of a canonical reply that SFT should train.

        All but an empty thought: a model that thinks would learn from it to think no more.
        """
        empty = len(self._no_thought)
        if tuple(reply[:empty]) != self._no_thought:
            empty = 0
        return (False,) * empty + (True,) * (len(reply) - empty)

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The actions in the last complete answer outside thought.

        They count even if the reply was cut off after the answer.
        """
        return read_answer(self.text(token_ids), opened=self.opens_thought)

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """The predicted observation, of the same kind as `like`; None without an answer."""
        text = read_prediction(
            self.text(token_ids), opened=self.opens_thought, as_json=isinstance(like, State)
        )
        return None if text is None else same_kind(like, text)

    def read_thought(self, token_ids: Sequence[int]) -> tuple[int, bool] | None:
        """The thought's tokens, and whether it was not ended; None for a reply without one."""
        text = self.text(token_ids)
        reply = split_reply(text, opened=self.opens_thought)
        if reply.thought is None:
            return None
        if reply.truncated:
            return len(token_ids), True
        tag = self.template.end_of_thought
        if tag is not None and tag in token_ids:
            return len(token_ids) - token_ids[::-1].index(tag), False
        end = len(text) - len(reply.rest)
        lengths = range(len(token_ids) + 1)
        return bisect_left(lengths, end, key=lambda n: len(self.text(token_ids[:n]))), False

    def write(self, text: str) -> list[int]:
        """Tokenize text inside a reply; it cannot contain special tokens."""
        return self.template.write(text)

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode a reply, leaving out special tokens."""
        return self.template.text(token_ids)

    def _reply_ids(self, answer: str, thought: str | None) -> tuple[int, ...]:
        if not self.thinks:
            if thought is not None:
                raise ConfigError(
                    "chat codec",
                    "a reply with a thought, for a model that is not asked to think",
                    "set thinking=on, or leave the thoughts out",
                )
            return self.template.reply(answer)
        before, after = self.thought_marks
        if not (thought and thought.strip()):
            return (*self._no_thought, *self.write(answer), self.stop_ids[0])
        text = f"{before}{thought.strip()}{after}{answer}"
        return (*self.write(text), self.stop_ids[0])
