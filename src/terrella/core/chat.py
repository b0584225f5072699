"""A message of a conversation that a model learns from, whatever file it came from.

ChatMessage(role="assistant", content=with_thought("2 + 2 is 4.", "4"), train=True)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]
THINK, END_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One turn. Only messages of the assistant are targets."""

    role: Role
    content: str
    train: bool = False


def with_thought(thought: str, answer: str) -> str:
    """A reply with its thought in front, as models that think write it."""
    return f"{THINK}\n{thought.strip()}\n{END_THINK}\n\n{answer.strip()}"
