"""Countdown: write an expression that uses every number exactly once and equals the target.

An episode is a single answer. Actions are free text, read by our own parser (`parser.py`);
`proposals` gives the random policy every well-formed expression.
    world = Countdown.Config().build()
    world.reset(seed=0)
    world.step("(25 - 5) * 3")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from terrella.core.errors import ConfigError, WorldError
from terrella.core.protocols import View
from terrella.core.types import Outcome
from terrella.core.world import StateWorld, World
from terrella.verify.text import Exact
from terrella.worlds.countdown.search import all_expressions, find_expression, random_value
from terrella.worlds.countdown.views import (
    FEWEST_NUMBERS,
    HIGHEST,
    MOST_NUMBERS,
    Round,
    TextView,
    answered,
)

MAX_TRIES = 100
"""Sets of numbers to draw before giving up on a target in range. Few are ever needed."""
TRIES_PER_NUMBERS = 200
"""Random expressions to try on each set of numbers."""


class Countdown(StateWorld[Round]):
    """Reach the target using every number exactly once."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """How many numbers there are, and how large they and the target can be."""

        max_steps: int = 1
        min_numbers: int = 3
        max_numbers: int = 4
        """The count of numbers is drawn uniformly from min_numbers..max_numbers."""
        highest: int = 99
        """Numbers lie in 1..highest."""
        max_target: int = 999
        """Targets lie in 1..max_target."""
        view: str = "text"

        def __post_init__(self) -> None:
            """Reject ranges that are empty, too large to enumerate, or too large to write."""
            super().__post_init__()
            if not FEWEST_NUMBERS <= self.min_numbers <= self.max_numbers <= MOST_NUMBERS:
                raise ConfigError(
                    "min_numbers, max_numbers",
                    f"must lie in {FEWEST_NUMBERS}..{MOST_NUMBERS}, the minimum first",
                )
            if not (1 <= self.highest <= HIGHEST and 1 <= self.max_target <= HIGHEST):
                raise ConfigError("highest, max_target", f"must lie in 1..{HIGHEST}")

    config: Config
    rules = (
        "Write one arithmetic expression that equals the target "
        "and uses each of the numbers exactly once. "
        "Allowed are whole numbers, + - * / and parentheses; division is exact. "
        "Answer with the expression alone, such as (25 - 5) * 3. There is one try."
    )
    presets = {"three": Config(max_numbers=3), "four": Config(min_numbers=4)}
    view_names = ("text",)
    verifier = Exact.Config().build()

    def make_view(self, name: str) -> View[Round]:
        return TextView()

    def draw(self, rng: np.random.Generator) -> Round:
        """Draw random numbers, and a random expression's value as the target.

        Expressions are drawn again until the value is whole and in range.
        """
        for _ in range(MAX_TRIES):
            count = int(rng.integers(self.config.min_numbers, self.config.max_numbers + 1))
            numbers = tuple(int(n) for n in rng.integers(1, self.config.highest + 1, count))
            # Several expressions are tried on the same numbers. Otherwise numbers with many whole
            # values would be drawn more often.
            for _ in range(TRIES_PER_NUMBERS):
                value = random_value(numbers, rng)
                if value is not None and self._is_target(value):
                    return Round(numbers, int(value))
        raise WorldError(
            self.name,
            f"found no target in 1..{self.config.max_target}",
            "raise max_target or lower highest",
        )

    def _is_target(self, value: Fraction) -> bool:
        return value.denominator == 1 and 1 <= value <= self.config.max_target

    def key(self, state: Round) -> Any:
        """Treat all orders of the same numbers as one instance."""
        return [sorted(state.numbers), state.target]

    def legal(self, state: Round) -> tuple[str, ...]:
        """Return no names: the answer is free text."""
        return ()

    def outcomes(self, state: Round, action: str) -> list[Outcome]:
        """A right answer pays 1, any other 0. Either ends the episode."""
        if state.answer is not None:
            return [Outcome(state=state, terminated=True)]
        after = answered(state, action)
        right = after.verdict == "right"
        return [Outcome(state=after, reward=float(right), terminated=True, success=right)]

    def proposals(self, state: Round) -> Sequence[str]:
        """All expressions that use each number once, right or wrong.

        So the random policy is always well-formed.
        """
        return all_expressions(state.numbers)

    def expert(self, state: Round, steps_left: int, rng: np.random.Generator) -> str:
        """Find an expression that reaches the target by exhaustive search."""
        expression = find_expression(state.numbers, state.target)
        if expression is None:
            raise WorldError(self.name, f"{state.target} cannot be reached from {state.numbers}")
        return expression
