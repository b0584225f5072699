"""Text of worlds, rows and pages as tokens, without the control tokens that it may spell.

A control token in such text is written with a space (`< end>`), so that it is characters. All other
text is tokenized as it is.
    write = PlainWriter(tokenizer).write
    write("page <end>") == tokenizer.encode("page < end>", add_special_tokens=False)
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from terrella.core.chat import END_THINK, THINK

logger = logging.getLogger("terrella")

THOUGHT_TAGS = frozenset({THINK, END_THINK})
TOOL_TAGS = frozenset({"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"})
_CONTROL = re.compile(r"<[|\uff5c].*[|\uff5c]>")
_BRACKETS = re.compile(r"<.*>|\[.*\]")


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """The tokens that a tokenizer calls special, with their ids."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {token.content: index for index, token in added.items() if token.special}


def control_tokens(tokenizer: Any) -> dict[str, int]:
    """Special tokens, and those that only the chat template should write.

    Not every tokenizer calls them special (Qwen3: thoughts and tools). Other added tokens are
    words, such as the HTML tags of Gemma.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")

    def controls(text: str) -> bool:
        known = text in THOUGHT_TAGS or text in TOOL_TAGS or _CONTROL.fullmatch(text)
        return bool(known or (_BRACKETS.fullmatch(text) and text in template))

    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {
        token.content: index
        for index, token in added.items()
        if token.special or controls(token.content)
    }


class Escape:
    """Spells some tokens with a space."""

    def __init__(self, spellings: Iterable[str]) -> None:
        longest_first = sorted(spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def __call__(self, text: str) -> str:
        return self._pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


class PlainWriter:
    """Tokenizes text for a model without a chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._escape = Escape(special_tokens(tokenizer))
        self._unknown: int | None = getattr(tokenizer, "unk_token_id", None)
        self._warned = False

    def write(self, text: str) -> list[int]:
        """The text's ids, without special tokens. Characters that have no token are named once."""
        ids = list(self.tokenizer.encode(self._escape(text), add_special_tokens=False))
        if self._unknown in ids and not self._warned:
            self._warned = True
            self._name_unknown(text)
        return ids

    def _name_unknown(self, text: str) -> None:
        def unknown(character: str) -> bool:
            return self._unknown in self.tokenizer.encode(character, add_special_tokens=False)

        found = "".join(sorted(filter(unknown, set(text))))
        logger.warning(
            "the tokenizer has no token for %r: such text cannot be told apart or predicted", found
        )
