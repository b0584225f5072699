"""Chat models, token in and token out: any Hugging Face chat template, without ever re-tokenising a reply.

The template renders a conversation around a marker that stands where a reply would; what it writes after the marker is
what the world forces after a real reply, whose sampled ids stay as they were. The hook that matters is `_after_reply`.
    codec = ChatCodec(tokenizer, max_actions=5)
    prompt = codec.ask_action(situation); forced = codec.world_turn(situation); codec.read_actions(sampled.token_ids)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from terrella.codecs.chat import (
    REPLY_FORM,
    SEPARATOR,
    Message,
    answer_text,
    chat_messages,
    prediction_messages,
    read_answer,
    read_prediction,
    state_message,
)
from terrella.core.errors import ConfigError
from terrella.core.types import Observation, Situation, State, Text, Tree, show_text

MARKER = "REPLY7Q3Z"
"""Stands for a reply in a rendered conversation: letters and digits, so that no template trims or escapes it."""


class ChatCodec:
    """`core.protocols.Codec` over a tokenizer with a chat template."""

    def __init__(self, tokenizer: Any, *, max_actions: int = 1, form: str = REPLY_FORM) -> None:
        """`max_actions` and `form` are what the model is told; give the driver the same number."""
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError("chat codec", "the tokenizer has no chat template", "use the interleaved codec instead")
        self.tokenizer, self.max_actions, self.form = tokenizer, max_actions, form
        specials = {token.content: index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_ids = frozenset(specials.values())
        self._special_text = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))) or r"(?!)")
        self._system_role = self._knows_system_role()
        self.stop_ids: tuple[int, ...] = self._find_stop_ids()

    # --- questions ------------------------------------------------------------------------------------------------

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        """Rules, format and what is seen, up to where the model writes."""
        return self._ids(chat_messages(situation, self.max_actions, self.form))

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        """What is seen and what is done; the model says what is seen next."""
        return self._ids(prediction_messages(situation, action))

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> tuple[int, ...]:
        """What the template writes between the end of a reply and the next; with the end itself for a cut-off one."""
        state = state_message(show_text(situation.observation), situation.steps_left)
        end, *rest = self._after_reply([state])
        return (end, *rest) if cut_off else tuple(rest)

    # --- answers --------------------------------------------------------------------------------------------------

    def answer_action(self, actions: Sequence[str]) -> tuple[int, ...]:
        """The reply that does this, as the template would render it."""
        return self._reply_ids(answer_text(f" {SEPARATOR} ".join(actions)))

    def answer_observation(self, observation: Observation) -> tuple[int, ...]:
        """The reply that predicts this."""
        return self._reply_ids(answer_text(show_text(observation), blank="\n"))

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The actions of the last complete answer tag; a reply that was cut off after it still has them."""
        return read_answer(self.text(token_ids))

    def write(self, text: str) -> list[int]:
        """Words inside a reply, without control tokens."""
        return list(self.tokenizer.encode(self._harmless(text), add_special_tokens=False))

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """The predicted observation, of the same kind as `like`; None without a complete answer tag."""
        text = read_prediction(self.text(token_ids))
        if text is None:
            return None
        kind = type(like) if isinstance(like, State | Tree) else Text
        return kind(text)

    # --- the template ---------------------------------------------------------------------------------------------

    def _render(self, messages: Sequence[Message], *, ask: bool) -> str:
        harmless = [{**message, "content": self._harmless(message["content"])} for message in messages]
        if not self._system_role:
            harmless = _system_into_user(harmless)
        rendered: str = self.tokenizer.apply_chat_template(harmless, tokenize=False, add_generation_prompt=ask)
        return rendered

    def _harmless(self, text: str) -> str:
        """A world's text cannot write control tokens: their spelling is broken by a blank."""
        return self._special_text.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """Ids, and the character each begins at. The template has written the special tokens itself."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(encoded["input_ids"]), [start for start, _ in encoded["offset_mapping"]]

    def _ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self._encode(self._render(messages, ask=True))[0])

    def _after_reply(self, messages: Sequence[Message]) -> list[int]:
        """What the template writes after a reply that `messages` follow: the end of the turn first."""
        opening = [_user("?"), {"role": "assistant", "content": MARKER}]
        text = self._render([*opening, *messages], ask=bool(messages))
        ids, starts = self._encode(text)
        # A blank between reply and end is the template's, not the model's: the turn ends with a token of its own.
        over = text.index(MARKER) + len(MARKER)
        ends = [i for i, start in enumerate(starts) if start >= over and ids[i] in self._special_ids]
        if not ends:
            raise ConfigError("chat codec", "the template ends a reply without a special token of its own")
        return ids[ends[0] :]

    def _reply_ids(self, reply: str) -> tuple[int, ...]:
        """A canonical reply in its place: what stands between the open question and the end of the turn."""
        question = [_user("?")]
        asked, _ = self._encode(self._render(question, ask=True))
        told, _ = self._encode(self._render([*question, {"role": "assistant", "content": reply}], ask=False))
        if told[: len(asked)] != asked:  # the template opens a live turn differently from a past one
            return (*self.tokenizer.encode(self._harmless(reply), add_special_tokens=False), self.stop_ids[0])
        written = told[len(asked) :]
        return (*written[: written.index(self.stop_ids[0])], self.stop_ids[0])

    def text(self, token_ids: Sequence[int]) -> str:
        """A reply as text, without whatever control tokens the model wrote."""
        plain = [token for token in token_ids if token not in self._special_ids]
        text: str = self.tokenizer.decode(plain)
        return text

    def _find_stop_ids(self) -> tuple[int, ...]:
        """The end of a turn, and the end of all text where that is another token."""
        end = self._after_reply([])[0]
        eos = self.tokenizer.eos_token_id
        return (end,) if eos in (None, end) else (end, int(eos))

    def _knows_system_role(self) -> bool:
        """Some templates refuse a system message, others drop it: both get it inside the first user message."""
        from jinja2 import TemplateError

        messages = [{"role": "system", "content": MARKER}, _user("?")]
        try:
            return MARKER in self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError:
            return False


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _system_into_user(messages: Sequence[Message]) -> list[Message]:
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, first, *rest = messages
    return [_user(f"{system['content']}\n\n{first['content']}"), *rest]
