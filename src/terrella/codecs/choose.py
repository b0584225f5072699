"""The codec that fits a tokenizer: a chat template where there is one, else the interleaved format.

codec = codec_for(tokenizer, max_actions=1)
"""

from __future__ import annotations

from typing import Any

from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.protocols import Codec


def codec_for(tokenizer: Any, *, max_actions: int = 1) -> Codec:
    """Chat models use their template; models made from scratch use the interleaved format."""
    if getattr(tokenizer, "chat_template", None):
        return ChatCodec(tokenizer, max_actions=max_actions)
    return InterleavedCodec(tokenizer)
