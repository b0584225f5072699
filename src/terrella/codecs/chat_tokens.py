"""Codec for chat models: works with any Hugging Face chat template, token in and token out.

Replies are never tokenized again. The template renders a conversation with a marker in the place of
a reply; the tokens it writes after the marker are what follows a real reply, whose sampled ids stay
as they are. See `_after_reply`.
    codec = ChatCodec(tokenizer, max_actions=5)
    prompt = codec.ask_action(situation)
    actions = codec.read_actions(sampled.token_ids)
    next_turn = codec.world_turn(situation)
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
from terrella.core.types import Observation, Situation, same_kind, show_text

MARKER = "REPLY7Q3Z"
"""Stands for a reply in a rendered conversation.

Only letters and digits, so that no template trims or escapes it.
"""


class ChatCodec:
    """`core.protocols.Codec` over a tokenizer with a chat template."""

    def __init__(self, tokenizer: Any, *, max_actions: int = 1, form: str = REPLY_FORM) -> None:
        """`max_actions` and `form` go into the prompt; give the rollout the same `max_actions`."""
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "chat codec",
                "the tokenizer has no chat template",
                "use the interleaved codec instead",
            )
        self.tokenizer = tokenizer
        self.max_actions = max_actions
        self.form = form
        specials = {
            token.content: index
            for index, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        self._special_ids = frozenset(specials.values())
        self._special_text = re.compile(
            "|".join(map(re.escape, sorted(specials, key=len, reverse=True))) or r"(?!)"
        )
        self._system_role = self._knows_system_role()
        self.stop_ids: tuple[int, ...] = self._find_stop_ids()

    # --- prompts ----------------------------------------------------------------------------------

    def ask_action(self, situation: Situation) -> tuple[int, ...]:
        """Prompt of an agent: rules, reply format and observations, up to the generation prompt."""
        return self._ids(chat_messages(situation, self.max_actions, self.form))

    def ask_observation(self, situation: Situation, action: str) -> tuple[int, ...]:
        """Prompt of a world model: the observation and the action."""
        return self._ids(prediction_messages(situation, action))

    def world_turn(self, situation: Situation, *, cut_off: bool = False) -> tuple[int, ...]:
        """The template's tokens between the end of one reply and the start of the next.

        A reply that was cut off has not ended its turn: its end token comes first.
        """
        state = state_message(show_text(situation.observation), situation.steps_left)
        end, *rest = self._after_reply([state])
        return (end, *rest) if cut_off else tuple(rest)

    # --- replies ----------------------------------------------------------------------------------

    def answer_action(self, actions: Sequence[str]) -> tuple[int, ...]:
        """The canonical reply with these actions, as the template would render it."""
        return self._reply_ids(answer_text(f" {SEPARATOR} ".join(actions)))

    def answer_observation(self, observation: Observation) -> tuple[int, ...]:
        """The canonical reply that predicts this observation."""
        return self._reply_ids(answer_text(show_text(observation), blank="\n"))

    def read_actions(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The actions in the last complete answer tag.

        They count even if the reply was cut off after the tag.
        """
        return read_answer(self.text(token_ids))

    def write(self, text: str) -> list[int]:
        """Tokenize text inside a reply; it cannot contain special tokens."""
        return list(self.tokenizer.encode(self._escape(text), add_special_tokens=False))

    def read_observation(self, token_ids: Sequence[int], like: Observation) -> Observation | None:
        """The predicted observation, of the same kind as `like`.

        None without a complete answer tag.
        """
        text = read_prediction(self.text(token_ids))
        return None if text is None else same_kind(like, text)

    # --- the template -----------------------------------------------------------------------------

    def _render(self, messages: Sequence[Message], *, ask: bool) -> str:
        escaped = [{**message, "content": self._escape(message["content"])} for message in messages]
        if not self._system_role:
            escaped = _system_into_user(escaped)
        rendered: str = self.tokenizer.apply_chat_template(
            escaped, tokenize=False, add_generation_prompt=ask
        )
        return rendered

    def _escape(self, text: str) -> str:
        """Insert a space into the spelling of special tokens, so that no world can inject them."""
        return self._special_text.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of a rendered text, and the character at which each begins.

        No special tokens are added: the template has already written them.
        """
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(encoded["input_ids"]), [start for start, _ in encoded["offset_mapping"]]

    def _ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self._encode(self._render(messages, ask=True))[0])

    def _after_reply(self, messages: Sequence[Message]) -> list[int]:
        """The template's tokens after a reply that `messages` follow, beginning with its end."""
        opening = [_user("?"), {"role": "assistant", "content": MARKER}]
        text = self._render([*opening, *messages], ask=bool(messages))
        ids, starts = self._encode(text)
        # White space between the reply and its end token is written by the template, not by the
        # model, so it is skipped.
        reply_end = text.index(MARKER) + len(MARKER)
        for index, start in enumerate(starts):
            if start >= reply_end and ids[index] in self._special_ids:
                return ids[index:]
        raise ConfigError(
            "chat codec", "the chat template does not end a reply with a special token"
        )

    def _reply_ids(self, reply: str) -> tuple[int, ...]:
        """Ids of a canonical reply, from after the generation prompt to the end of the turn."""
        messages = [_user("?")]
        prompt, _ = self._encode(self._render(messages, ask=True))
        messages.append({"role": "assistant", "content": reply})
        conversation, _ = self._encode(self._render(messages, ask=False))
        stop = self.stop_ids[0]
        if conversation[: len(prompt)] != prompt:
            # The template renders a past turn differently from one that is being generated.
            return (*self.write(reply), stop)
        written = conversation[len(prompt) :]
        return (*written[: written.index(stop)], stop)

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode a reply, leaving out special tokens."""
        plain = [token for token in token_ids if token not in self._special_ids]
        text: str = self.tokenizer.decode(plain)
        return text

    def _find_stop_ids(self) -> tuple[int, ...]:
        """The end-of-turn token, and the EOS token if it is a different one."""
        end = self._after_reply([])[0]
        eos = self.tokenizer.eos_token_id
        return (end,) if eos in (None, end) else (end, int(eos))

    def _knows_system_role(self) -> bool:
        """Whether the template renders a system message.

        Some templates raise an error, others drop it. For both, the system message goes into the
        first user message.
        """
        from jinja2 import TemplateError

        messages = [{"role": "system", "content": MARKER}, _user("?")]
        try:
            return MARKER in self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except TemplateError:
            return False


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _system_into_user(messages: Sequence[Message]) -> list[Message]:
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, first, *rest = messages
    return [_user(f"{system['content']}\n\n{first['content']}"), *rest]
