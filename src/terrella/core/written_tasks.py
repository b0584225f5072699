"""Tasks in words: what a world offers to a curriculum that writes instructions.

A world that takes instructions turns one into a task of its own, with a check where it can make
one. The task is text, so that it can be stored, and sent to a world in another process.
    draft = world.draft("Who owns ticket 5?", like="Who owns ticket 3?")
    world.reset(seed=0, options={"written": draft.task})
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

_TASK_LINE = re.compile(r'(?:\[\d{1,9}\] )?task ("(?:[^"\\]|\\.)*")')


def shown_task(page: str) -> str:
    """The task in the first line of a page (`[1] task "..."`); empty without one."""
    match = _TASK_LINE.match(page.split("\n", 1)[0])
    if match is None:
        return ""
    try:
        return str(json.loads(match[1]))
    except ValueError:  # a recorded page that was not written by our tree writer
        return match[1][1:-1]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An instruction as a task, or the reason why it is none."""

    task: str = ""
    """For the option `written` of `reset`; empty if the world cannot do it."""
    checked: bool = False
    """Whether the world can tell success; otherwise an outcome model has to."""
    reason: str = ""
    """Why it cannot be done."""


@runtime_checkable
class InstructionWorld(Protocol):
    """A world that takes tasks in words."""

    def known_instructions(self) -> Sequence[str]:
        """The instructions of its own tasks, of every split: none of them may be written again."""
        ...

    def write_instructions(self, count: int, rng: np.random.Generator) -> list[str]:
        """New instructions by its templates; none if it has no templates."""
        ...

    def draft(self, instruction: str, like: str) -> Draft:
        """The task that an untrusted instruction means; without a template it begins as `like`.

        `like` is the instruction of one of the world's own tasks, or a task that it drafted.
        """
        ...
