"""A round of Countdown in five lines of text, and back.

TextView().read(TextView().show(state)) == state
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from terrella.core.types import Observation, Text
from terrella.worlds.countdown.parser import parse

NONE, UNREADABLE = "none", "unreadable"
FEWEST_NUMBERS, MOST_NUMBERS, HIGHEST = 2, 4, 9999
_INTEGER = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True)
class Round:
    """Numbers, target, and what was answered.

    Only an expression that could be read is kept, respelled from its tokens: what a model wrote is untrusted, and
    none of its other characters reach a state, a view or a prompt.
    """

    numbers: tuple[int, ...]
    target: int
    answer: str | None = None
    """None before the answer; UNREADABLE when it was no expression."""
    value: str | None = None
    """The exact value, as an integer or a fraction; None when there is none."""

    @property
    def verdict(self) -> str:
        """What became of it: open, unreadable, wrong numbers, wrong value or right."""
        if self.answer is None:
            return "open"
        expression = parse(self.answer)
        if expression is None:
            return UNREADABLE
        if sorted(expression.numbers) != sorted(self.numbers):
            return "wrong numbers"
        return "right" if expression.value == Fraction(self.target) else "wrong value"


def answered(state: Round, text: str) -> Round:
    """The round after this answer."""
    expression = parse(text)
    if expression is None:
        return replace(state, answer=UNREADABLE, value=None)
    return replace(state, answer=expression.text, value=str(expression.value))


class TextView:
    """One line each for numbers, target, answer, its value and the verdict."""

    legend = (
        "Numbers may be used in any order. Answer and Value are 'none' before the answer; Verdict is then one of "
        "right, wrong value, wrong numbers, unreadable."
    )

    def show(self, state: Round) -> Observation:
        """The five lines."""
        lines = (
            f"Numbers: {', '.join(map(str, state.numbers))}", f"Target: {state.target}",
            f"Answer: {state.answer or NONE}", f"Value: {state.value or NONE}", f"Verdict: {state.verdict}",
        )  # fmt: skip
        return Text("\n".join(lines))

    def read(self, observation: Observation) -> Round | None:
        """The round again. Value and verdict must be those of the answer: no other rendering has them."""
        lines = observation.text.split("\n") if isinstance(observation, Text) else []
        if len(lines) != 5:
            return None
        numbers, target, answer = (line.partition(": ")[2] for line in lines[:3])
        found = numbers.split(", ")
        if not FEWEST_NUMBERS <= len(found) <= MOST_NUMBERS or not all(map(_INTEGER.fullmatch, (*found, target))):
            return None
        state = Round(tuple(map(int, found)), int(target))
        state = state if answer == NONE else answered(state, answer)
        return state if self.show(state) == observation else None
