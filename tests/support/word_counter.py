"""A counter that takes tasks in words: "Count from 3 to 7." It stands for a web world in tests."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from terrella.core.types import Status, Transition, Verdict
from terrella.core.written_tasks import Draft
from terrella.worlds.counter import Count, Counter

HELD_OUT = "Count from 1 to 5."


class WordCounter(Counter):
    """Instructions by one template; a goal beyond the limit cannot be reached."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Counter.Config):
        """As a counter's."""

    config: Config
    checked = True

    def known_instructions(self) -> Sequence[str]:
        return (HELD_OUT,)

    def write_instructions(self, count: int, rng: np.random.Generator) -> list[str]:
        starts = rng.integers(0, 6, size=count)
        return [f"Count from {start} to {start + 1 + n % 4}." for n, start in enumerate(starts)]

    def draft(self, instruction: str, like: str) -> Draft:
        match = re.fullmatch(r"Count from (\d) to (\d+)\.", instruction)
        if match is None:
            return Draft(task=instruction)
        if int(match[2]) >= self.config.goals:
            return Draft(reason=f"no goal {match[2]}")
        return Draft(task=instruction, checked=True)

    def _take(self, written: str) -> Any:
        numbers = [int(number) for number in re.findall(r"\d+", written)] or [0, 1]
        self.checked = written.startswith("Count from")
        self._state = Count(numbers[0], numbers[-1])
        return {"written": written}

    def outcome(self, transitions: Sequence[Transition]) -> Verdict:
        if self.written and not self.checked:
            return Verdict(value=None, status=Status.NO_JUDGE, evidence="no check")
        return super().outcome(transitions)
