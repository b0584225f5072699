"""A tokenizer's chat template: renders conversations, and knows what stands around a reply.

Templates differ in more than their tokens. Some have no system role. Some open a thought in the
generation prompt (DeepSeek-R1), some have a switch for thoughts (`enable_thinking`, Qwen3). Some
write nothing after a reply: the mark of the next turn ends it (GLM-4). What a template does is
found out by rendering, not by the model's name.
    template = ChatTemplate(tokenizer, thinking="auto")
    ids = template.prompt(messages)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from terrella.codecs.chat import Message
from terrella.codecs.escape import THOUGHT_TAGS, Escape, control_tokens, special_tokens
from terrella.core.chat import END_THINK, THINK
from terrella.core.errors import ConfigError

Thinking = Literal["auto", "on", "off"]
"""Whether a model is asked to think: auto asks those whose template opens or supports a thought."""

MARKER = "REPLY7Q3Z"
"""Stands for a reply in a rendered conversation.

Only letters and digits, so that no template trims or escapes it.
"""
END_OF_THOUGHT = f"\n{END_THINK}\n\n"
"""Between a thought and an answer, as Qwen3 and DeepSeek-R1 write it."""
_SWITCH = "enable_thinking"
TODAY = datetime(2024, 7, 26)
"""The day that Llama's templates name where they are not told another."""
GENERATION_ENDS = "generation_ends"
"""Attribute of a tokenizer: ids in its model's `generation_config.json` that end a generation."""


class ChatTemplate:
    """Messages to token ids, by the tokenizer's template."""

    def __init__(self, tokenizer: Any, *, thinking: Thinking = "auto") -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "chat codec",
                "the tokenizer has no chat template",
                "use the interleaved codec instead",
            )
        self.tokenizer = tokenizer
        specials = special_tokens(tokenizer)
        controls = control_tokens(tokenizer)
        self.end_of_thought: int | None = tokenizer.get_vocab().get(END_THINK)
        """The tag as a token of its own, where the tokenizer has one."""
        self._special_ids = frozenset(specials.values())
        thought_tags = {specials[tag] for tag in THOUGHT_TAGS if tag in specials}
        self._hidden_ids = self._special_ids - thought_tags
        # The reply format in a system message names the tags of thoughts.
        self._escapes = {
            "user": Escape(controls),
            "system": Escape({*specials, *(set(controls) - THOUGHT_TAGS)}),
            "assistant": Escape(set(specials) - THOUGHT_TAGS),
        }
        self._options: dict[str, bool] = {}
        self._prompt_end = ""
        self._system_role = self._knows_system_role()
        self.thinks = self._choose(thinking)
        """Whether replies begin with a thought."""
        self.opens_thought = self.thinks and self._ends_in_thought()
        """Whether the generation prompt has opened the thought already."""
        self._marks_end = bool(self._after_reply([]))
        self.stop_ids = self._find_stop_ids()

    # --- thoughts ---------------------------------------------------------------------------------

    def _choose(self, thinking: Thinking) -> bool:
        """Set the template's options for this choice; returns whether the model thinks."""
        has_switch = self._question(**{_SWITCH: True}) != self._question(**{_SWITCH: False})
        writes_thoughts = END_THINK in str(self.tokenizer.chat_template)
        supports = has_switch or writes_thoughts or self._ends_in_thought()
        thinks = thinking == "on" or (thinking == "auto" and supports)
        if has_switch:
            self._options = {_SWITCH: thinks}
        if not thinks and self._ends_in_thought():
            # The template insists on a thought: an empty one ends it, as Qwen3's switch does.
            self._prompt_end = END_OF_THOUGHT
        return thinks

    def _question(self, **options: bool) -> str:
        rendered: str = self.tokenizer.apply_chat_template(
            [user("?")],
            tokenize=False,
            add_generation_prompt=True,
            strftime_now=fixed_date,
            **options,
        )
        return rendered

    def _ends_in_thought(self) -> bool:
        return self._question(**self._options).rstrip().endswith(THINK)

    @property
    def thought_marks(self) -> tuple[str, str]:
        """What stands before and after the thought in a reply; nothing if the model has none."""
        if not self.thinks:
            return "", ""
        return ("" if self.opens_thought else f"{THINK}\n"), END_OF_THOUGHT

    # --- rendering --------------------------------------------------------------------------------

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of a conversation, up to where the model writes."""
        return tuple(self.encode(self.render(messages, ask=True))[0])

    def after_reply(self, messages: Sequence[Message]) -> list[int]:
        """The template's tokens after a reply that `messages` follow, beginning with its end.

        The end may be the first token of the next message (GLM-4).
        """
        found = self._after_reply(messages)
        if not found:
            raise ConfigError(
                "chat codec",
                "the chat template does not end a reply with a special token",
                "give each turn its own prompt (history=actions) and the tokenizer an EOS token",
            )
        return found

    def _after_reply(self, messages: Sequence[Message]) -> list[int]:
        opening = [user("?"), {"role": "assistant", "content": MARKER}]
        text = self.render([*opening, *messages], ask=bool(messages))
        if MARKER not in text:
            raise ConfigError("chat codec", "the chat template does not show the model's replies")
        ids, starts = self.encode(text)
        # White space between the reply and its end token is written by the template, not by the
        # model, so it is skipped.
        reply_end = text.index(MARKER) + len(MARKER)
        for index, start in enumerate(starts):
            if start >= reply_end and ids[index] in self._special_ids:
                return ids[index:]
        return []

    def reply(self, content: str) -> tuple[int, ...]:
        """Ids of a reply, from after the generation prompt to the end of the turn."""
        messages = [user("?")]
        prompt, _ = self.encode(self.render(messages, ask=True))
        messages.append({"role": "assistant", "content": content})
        conversation, _ = self.encode(self.render(messages, ask=False))
        written = self.continued(prompt, conversation)
        if written is None:
            # The template renders a past turn differently from one that is being generated.
            return (*self.write(content), self.stop_ids[0])
        return tuple(written)

    def continued(self, prompt: list[int], conversation: list[int]) -> list[int] | None:
        """The reply that ends a rendered conversation, with the end of its turn.

        None if it does not follow this prompt.
        """
        if conversation[: len(prompt)] != prompt:
            return None
        written, stop = conversation[len(prompt) :], self.stop_ids[0]
        if stop in written:
            return [*written[: written.index(stop)], stop]
        return None if self._marks_end else [*written, stop]

    def write(self, text: str) -> list[int]:
        """Tokenize text inside a reply; tags of thoughts are the only special tokens in it."""
        escaped = self._escapes["assistant"](text)
        return list(self.tokenizer.encode(escaped, add_special_tokens=False))

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode a reply up to its first special token; tags of thoughts stay.

        What a model writes after one is not its reply: it may invent the next turns.
        """
        ends = (at for at, token in enumerate(token_ids) if token in self._hidden_ids)
        text: str = self.tokenizer.decode(list(token_ids[: next(ends, len(token_ids))]))
        return text

    def render(self, messages: Sequence[Message], *, ask: bool) -> str:
        """The conversation as the template writes it; `ask` adds the generation prompt.

        Control tokens are spelt with a space, so that no world and no row can inject them. Tags of
        thoughts and tools may stand in replies, and those of thoughts in system messages.
        """
        escaped = [{**message, "content": self._escape(message)} for message in messages]
        if not self._system_role:
            escaped = _system_into_user(escaped)
        rendered: str = self.tokenizer.apply_chat_template(
            escaped,
            tokenize=False,
            add_generation_prompt=ask,
            strftime_now=fixed_date,
            **self._options,
        )
        return rendered + self._prompt_end if ask else rendered

    def _escape(self, message: Message) -> str:
        escape = self._escapes.get(message["role"], self._escapes["user"])
        return escape(message["content"])

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of a rendered text, and the character at which each begins.

        No special tokens are added: the template has already written them.
        """
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(encoded["input_ids"]), [start for start, _ in encoded["offset_mapping"]]

    def _find_stop_ids(self) -> tuple[int, ...]:
        """The end-of-turn token, the EOS token, and those that generation ends with by default.

        Where nothing ends a turn, it is the mark of the user's next one, or the EOS token.
        """
        eos = self.tokenizer.eos_token_id
        own = () if eos is None else (int(eos),)
        others = getattr(self.tokenizer, GENERATION_ENDS, ())
        end = self._after_reply([]) or self._after_reply([user("?")])
        return tuple(dict.fromkeys((*(end[:1] or own or self.after_reply([])), *own, *others)))

    def _knows_system_role(self) -> bool:
        """Whether the template renders a system message.

        Some templates raise an error, others drop it. For both, the system message goes into the
        first user message.
        """
        from jinja2 import TemplateError

        messages = [{"role": "system", "content": MARKER}, user("?")]
        try:
            return MARKER in self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, strftime_now=fixed_date
            )
        except TemplateError:
            return False


def fixed_date(form: str) -> str:
    """Today, for templates that name it; always the same day, so that a prompt never changes."""
    return TODAY.strftime(form)


def user(content: str) -> Message:
    """A user message."""
    return {"role": "user", "content": content}


def _system_into_user(messages: Sequence[Message]) -> list[Message]:
    """The system message in front of the first user message, or in its place."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, *rest = messages
    if not rest or rest[0]["role"] != "user":
        return [user(system["content"]), *rest]
    first, *later = rest
    return [user(f"{system['content']}\n\n{first['content']}"), *later]
