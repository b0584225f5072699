"""What an actor or a critic reads of a situation. Nothing here imports torch.

PolicyInput("Player: (1,2)", offered=("Up", "Down"), past_actions=("Up",), steps_left=9)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """A situation as text, with the actions to choose from."""

    text: str
    offered: tuple[str, ...] = ()
    past_actions: tuple[str, ...] = ()
    """All actions so far; a network reads the last few."""
    steps_left: int = 0
    instruction: str = ""
    """The world's instruction: a language model reads it before the text."""
