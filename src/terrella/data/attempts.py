"""Attempts: episodes as an agent that chooses from lists met them, with what it was offered at each step.

An `Episode` says what happened; an `Attempt` also says what could have been chosen, which is what a policy is trained
on. Attempts are JSON lines: readable, exact, never pickled.
    write_attempts(path, attempts); attempts = read_attempts(path)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from terrella.core.config import record_from_json
from terrella.core.types import canonical_json
from terrella.data.store import write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticeTask:
    """A thing to try: which family of tasks (a world config by name), which instance of it."""

    family: str
    seed: int
    noise_seed: int = 0

    @property
    def name(self) -> str:
        """Two tasks of one name are the same task."""
        return f"{self.family}/{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One step: what was seen, what was offered, what was taken."""

    observation: str
    offered: tuple[str, ...]
    taken: int
    logprob: float
    steps_left: int

    @property
    def action(self) -> str:
        """The action as text."""
        return self.offered[self.taken]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One play of a task."""

    task: PracticeTask
    instruction: str
    choices: tuple[Choice, ...]
    last: str
    """What was seen after the last step."""
    success: bool | None
    """The world's verdict; None when the episode broke and says nothing."""
    stop: str

    @property
    def actions(self) -> tuple[str, ...]:
        """All that was done."""
        return tuple(choice.action for choice in self.choices)

    def seen_after(self, index: int) -> str:
        """The observation after step `index`."""
        return self.choices[index + 1].observation if index + 1 < len(self.choices) else self.last


def write_attempts(path: Path, attempts: Iterable[Attempt]) -> None:
    """One attempt a line, whole or absent."""
    lines = (canonical_json(dataclasses.asdict(attempt)) + "\n" for attempt in attempts)
    write_atomic(path, "".join(lines).encode())


def read_attempts(path: Path) -> list[Attempt]:
    """What was written; a damaged line is an error, never skipped."""
    return [record_from_json(Attempt, json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def known(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Those that count: not broken, and with at least one step."""
    return [attempt for attempt in attempts if attempt.success is not None and attempt.choices]
