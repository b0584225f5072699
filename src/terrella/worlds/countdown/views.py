"""The state of a Countdown round, and its view as five lines of text that read back.

TextView().read(TextView().show(state)) == state
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from terrella.core.types import Observation, Text
from terrella.worlds.countdown.parser import parse

NONE = "none"
UNREADABLE = "unreadable"
FEWEST_NUMBERS = 2
MOST_NUMBERS = 4
HIGHEST = 9999
_INTEGER = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True)
class Round:
    """The numbers, the target and the answer.

    An answer is stored only if it parses, and then in normalised form: model output is untrusted,
    and none of its other characters may reach a state, a view or a prompt.
    """

    numbers: tuple[int, ...]
    target: int
    answer: str | None = None
    """None before the answer; UNREADABLE when it was not an expression."""
    value: str | None = None
    """The exact value of the answer, as an integer or a fraction; None if it has no value."""

    @property
    def verdict(self) -> str:
        """One of: open, unreadable, wrong numbers, wrong value, right."""
        if self.answer is None:
            return "open"
        expression = parse(self.answer)
        if expression is None:
            return UNREADABLE
        if sorted(expression.numbers) != sorted(self.numbers):
            return "wrong numbers"
        return "right" if expression.value == Fraction(self.target) else "wrong value"


def answered(state: Round, text: str) -> Round:
    """Return the round after this answer."""
    expression = parse(text)
    if expression is None:
        return replace(state, answer=UNREADABLE, value=None)
    return replace(state, answer=expression.text, value=str(expression.value))


class TextView:
    """One line each for the numbers, the target, the answer, its value and the verdict."""

    legend = (
        "Numbers may be used in any order. Answer and Value are 'none' before the answer; "
        "Verdict is then one of right, wrong value, wrong numbers, unreadable."
    )

    def show(self, state: Round) -> Observation:
        lines = (
            f"Numbers: {', '.join(map(str, state.numbers))}",
            f"Target: {state.target}",
            f"Answer: {state.answer or NONE}",
            f"Value: {state.value or NONE}",
            f"Verdict: {state.verdict}",
        )
        return Text("\n".join(lines))

    def read(self, observation: Observation) -> Round | None:
        """Read numbers, target and answer; value and verdict must be the ones that follow."""
        lines = observation.text.split("\n") if isinstance(observation, Text) else []
        if len(lines) != 5:
            return None
        numbers, target, answer = (line.partition(": ")[2] for line in lines[:3])
        parts = numbers.split(", ")
        if not FEWEST_NUMBERS <= len(parts) <= MOST_NUMBERS:
            return None
        if not all(_INTEGER.fullmatch(part) for part in (*parts, target)):
            return None
        state = Round(tuple(map(int, parts)), int(target))
        if answer != NONE:
            state = answered(state, answer)
        return state if self.show(state) == observation else None
