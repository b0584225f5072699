"""Attempts: episodes of an agent that chooses from lists or writes, with the options at each step.

An `Episode` records what happened. An `Attempt` also records which actions were offered and which
tokens were written, which is what an actor is trained on. Attempts are stored as JSON lines.
    write_attempts(path, attempts)
    attempts = read_attempts(path)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from terrella.core.config import record_from_json
from terrella.core.integrity import read_hashed, write_hashed
from terrella.core.types import Stop, canonical_json
from terrella.core.untrusted import parse_json


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticeTask:
    """A task to practise: a family of tasks (the name of a world config) and an instance."""

    family: str
    seed: int
    noise_seed: int = 0
    written: str = ""
    """A task that a curriculum wrote, in place of an instance (`core/written_tasks.py`)."""

    @property
    def name(self) -> str:
        """Tasks with the same name are the same task; others may draw the same instance."""
        return f"{self.family}/{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One step: the observation, the offered actions, and the index of the chosen one."""

    observation: str
    offered: tuple[str, ...]
    taken: int
    """-1 for an action that was written freely."""
    logprob: float
    steps_left: int
    written: str = ""
    """The action as a language model wrote it; empty where an offered one was taken as it is."""
    reply_ids: tuple[int, ...] = ()
    """The tokens that a language model wrote: what was sampled is what is trained."""

    @property
    def action(self) -> str:
        """The action as text, as the world got it."""
        return self.offered[self.taken] if self.taken >= 0 and not self.written else self.written


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One episode on a task."""

    task: PracticeTask
    instruction: str
    choices: tuple[Choice, ...]
    last: str
    """The observation after the last step."""
    success: bool | None
    """The world's verdict; None if the episode broke, so that it says nothing."""
    stop: str
    instance: str = ""
    """What the world drew (`core/instances.py`); empty if it could not be reset."""

    @property
    def name(self) -> str:
        """Identifies what was tried: two seeds that draw one instance are one task."""
        return f"{self.task.family}/{self.instance}" if self.instance else self.task.name

    @property
    def is_broken(self) -> bool:
        """Whether the world failed, so that nobody knows how it would have ended."""
        return bool(self.stop) and Stop(self.stop).is_broken

    @property
    def can_be_judged(self) -> bool:
        """Whether it was played to its end; the world may have no check for it."""
        return bool(self.choices) and not self.is_broken

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(choice.action for choice in self.choices)

    def observation_after(self, index: int) -> str:
        """The observation after step `index`."""
        return self.choices[index + 1].observation if index + 1 < len(self.choices) else self.last


def write_attempts(path: Path, attempts: Iterable[Attempt]) -> None:
    """Write one attempt per line; the file is complete or absent, its hash lies beside it."""
    lines = (canonical_json(dataclasses.asdict(attempt)) + "\n" for attempt in attempts)
    write_hashed(path, "".join(lines).encode())


def read_attempts(path: Path) -> list[Attempt]:
    """Read what `write_attempts` wrote; a damaged file is refused by name."""
    lines = read_hashed(path).splitlines()
    return [record_from_json(Attempt, parse_json(line, str(path))) for line in lines]


def count_steps(attempts: Iterable[Attempt]) -> int:
    """The env steps that these attempts took."""
    return sum(len(attempt.choices) for attempt in attempts)


def scored_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts with a verdict (not broken) and at least one step."""
    return [attempt for attempt in attempts if attempt.success is not None and attempt.choices]
