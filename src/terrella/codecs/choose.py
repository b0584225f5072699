"""The codec that fits a tokenizer: a chat template where there is one, else the interleaved format.

Pipelines name a codec by its config, because every process of a run makes its own.
    codec = CodecConfig(max_actions=1).make(tokenizer)
    codec = TaggedCodecConfig(form="worldmodel", max_actions=5).make(tokenizer)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from terrella.codecs.chat_template import Thinking
from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.steps import BriefChatCodec, StepsCodec
from terrella.codecs.tagged import Form, TaggedCodec, TextCodec, tagged_reply_form
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.protocols import Codec, TargetCodec


@dataclass(frozen=True, kw_only=True)
class CodecConfig(Configurable.Config):
    """Chat models use their template; models made from scratch use the interleaved format."""

    max_actions: int = 1
    """Actions that one reply may hold."""
    thinking: Thinking = "auto"
    """Whether a chat model thinks before it answers; auto follows its template."""

    def make(self, tokenizer: Any) -> Codec:
        return codec_for(tokenizer, max_actions=self.max_actions, thinking=self.thinking)


@dataclass(frozen=True, kw_only=True)
class TaggedCodecConfig(CodecConfig):
    """Replies with tags, over a chat model's template or over the interleaved format.

    The forms `steps` and `steps_predicted` have no thoughts: `thinking=on` is refused there.
    """

    form: Form = "worldmodel"

    def __post_init__(self) -> None:
        if self.form in THOUGHTLESS and self.thinking == "on":
            raise ConfigError(
                "thinking",
                f"on, but a reply of form={self.form} has no thought",
                "set thinking=off, or form=worldmodel",
            )

    def make(self, tokenizer: Any) -> TaggedCodec:
        if self.form in THOUGHTLESS:
            inner = _brief_codec(tokenizer, self.max_actions)
            return StepsCodec(inner, prediction_first=self.form == "steps_predicted")
        if getattr(tokenizer, "chat_template", None):
            chat = ChatCodec(tokenizer, max_actions=self.max_actions, thinking=self.thinking)
            chat.form = tagged_reply_form(self.form, thinks=chat.thinks)
            return TaggedCodec(chat, form=self.form, blank="\n")
        return TaggedCodec(InterleavedCodec(tokenizer), form=self.form)


THOUGHTLESS: tuple[Form, ...] = ("steps", "steps_predicted")
"""Forms whose replies are lines of actions and what they change, and nothing else."""


def _brief_codec(tokenizer: Any, max_actions: int) -> TextCodec:
    if getattr(tokenizer, "chat_template", None):
        return BriefChatCodec(tokenizer, max_actions=max_actions, thinking="off")
    return InterleavedCodec(tokenizer)


def one_action(config: CodecConfig) -> None:
    """Refuse several actions in a reply, for codecs whose replies hold one."""
    if config.max_actions != 1:
        raise ConfigError(
            "max_actions", f"{config.max_actions}, but a reply is one action", "set 1"
        )


def codec_for(tokenizer: Any, *, max_actions: int = 1, thinking: Thinking = "auto") -> Codec:
    """Chat models use their template; models made from scratch use the interleaved format."""
    if getattr(tokenizer, "chat_template", None):
        return ChatCodec(tokenizer, max_actions=max_actions, thinking=thinking)
    return InterleavedCodec(tokenizer)


def writes_thoughts(codec: Codec) -> bool:
    """Whether replies begin with a thought."""
    inner = codec.inner if isinstance(codec, TaggedCodec) else codec
    return any(getattr(inner, "thought_marks", ()))


def sft_targets(codec: Codec, reply: Sequence[int]) -> tuple[bool, ...]:
    """The tokens of a canonical reply that SFT trains: all but an empty thought."""
    if isinstance(codec, TargetCodec):
        return codec.targets(reply)
    return (True,) * len(reply)
