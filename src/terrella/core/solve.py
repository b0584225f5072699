"""Exact values of small worlds by dynamic programming over (state, steps left).

The value is the probability of success within the steps left, under the uniform random policy or
the best one.
    Solver(world).random_value(state, 10), Solver(world).best_action(state, 10)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from terrella.core.errors import WorldError
from terrella.core.types import Outcome

NEAR = 32
"""Steps in which a sure win is looked for before the whole horizon is."""


class Solvable(Protocol):
    """What the solver needs of a world."""

    name: str

    def truth(self, state: Hashable, action: str) -> Sequence[Outcome]:
        """The exact distribution over results."""
        ...

    def proposals(self, state: Hashable) -> Sequence[str]:
        """The actions to choose from."""
        ...


class StateSpaceTooLargeError(WorldError):
    """The exact value would need more entries than allowed; estimate it by playing instead."""


class Solver:
    """Memoised finite-horizon values.

    One solver serves all instances of a world; `clear` frees it.
    """

    def __init__(
        self, world: Solvable, *, max_entries: int = 300_000, max_questions: int = 3_000_000
    ) -> None:
        """`max_entries` bounds memory, `max_questions` (asked of the world) time.

        Past one the space is too large.
        """
        self.world, self.max_entries, self.max_questions = world, max_entries, max_questions
        self.questions = 0
        self._random: dict[tuple[Hashable, int], float] = {}
        self._best: dict[tuple[Hashable, int], float] = {}

    def clear(self) -> None:
        """Forget all values."""
        self._random.clear()
        self._best.clear()
        self.questions = 0

    def random_value(self, state: Hashable, steps_left: int) -> float:
        """Probability that uniformly random proposals succeed."""
        self._make_room()
        return self._value(
            state, steps_left, self._random, lambda values: sum(values) / len(values)
        )

    def best_value(self, state: Hashable, steps_left: int) -> float:
        """Probability that the best policy succeeds."""
        self._make_room()
        return self._value(state, steps_left, self._best, max)

    def best_action(self, state: Hashable, steps_left: int) -> str:
        """The first proposal of highest value, and among those the one that wins soonest."""
        self._make_room()
        proposals = self.world.proposals(state)
        if not proposals:
            raise WorldError(self.world.name, "no proposals to choose from")
        for budget in range(1, min(steps_left, NEAR) + 1):  # a sure win that is near is the best
            best, reached = self._best_within(state, proposals, budget)
            if reached >= 1 - 1e-12:
                return best
        best_value = self._value(state, steps_left, self._best, max)
        # Ties are common when there is time to spare: a smaller budget tells which action makes
        # progress.
        for budget in range(1, steps_left + 1):
            best, reached = self._best_within(state, proposals, budget)
            if reached > 0 and reached >= best_value - 1e-12:
                return best
        return self._best_within(state, proposals, steps_left)[0]

    def _best_within(
        self, state: Hashable, proposals: Sequence[str], budget: int
    ) -> tuple[str, float]:
        """The first proposal of highest value within so many steps, and that value."""
        values = [self._action_value(state, each, budget, self._best, max) for each in proposals]
        reached = max(values)
        return proposals[values.index(reached)], reached

    def _make_room(self) -> None:
        """Each question starts with room to answer it.

        What earlier instances left behind must not fill the memo.
        """
        self.questions = 0
        if len(self._random) + len(self._best) > self.max_entries // 2:
            self.clear()

    def _value(
        self,
        state: Hashable,
        steps_left: int,
        memo: dict[tuple[Hashable, int], float],
        combine: Callable[[list[float]], float],
    ) -> float:
        """The value of a state.

        What is still needed is kept on a stack of our own: Python's would end at a few hundred
        steps.
        """
        stack = [] if steps_left <= 0 or (state, steps_left) in memo else [(state, steps_left)]
        results: dict[tuple[Hashable, int], list[Sequence[Outcome]]] = {}
        while stack:
            entry = stack[-1]
            if entry in memo:
                stack.pop()
            elif entry not in results:
                results[entry] = self._results(entry[0], len(memo))
                stack += self._unknown(results[entry], entry[1] - 1, memo)
            else:
                each = [self._expected(r, entry[1] - 1, memo) for r in results.pop(entry)]
                memo[entry] = combine(each)
        return memo[state, steps_left] if steps_left > 0 else 0.0

    def _results(self, state: Hashable, entries: int) -> list[Sequence[Outcome]]:
        """What each proposal leads to."""
        if entries >= self.max_entries:
            raise StateSpaceTooLargeError(
                self.world.name, f"more than {self.max_entries} (state, step) pairs"
            )
        proposals = self.world.proposals(state)
        if not proposals:
            raise WorldError(self.world.name, "no proposals to choose from")
        return [self._ask(state, action) for action in proposals]

    def _unknown(
        self,
        results: Sequence[Sequence[Outcome]],
        steps_left: int,
        memo: dict[tuple[Hashable, int], float],
    ) -> list[tuple[Hashable, int]]:
        """The states whose values are needed and not known, the first one last."""
        if steps_left <= 0:
            return []
        states = [r.state for each in results for r in each if not r.terminated]
        return [(s, steps_left) for s in reversed(states) if (s, steps_left) not in memo]

    def _expected(
        self,
        results: Sequence[Outcome],
        steps_left: int,
        memo: dict[tuple[Hashable, int], float],
    ) -> float:
        value = 0.0
        for result in results:
            if result.terminated:
                value += result.probability * result.success
            elif steps_left > 0:
                value += result.probability * memo[result.state, steps_left]
        return value

    def _action_value(
        self,
        state: Hashable,
        action: str,
        steps_left: int,
        memo: dict[tuple[Hashable, int], float],
        combine: Callable[[list[float]], float],
    ) -> float:
        results = self._ask(state, action)
        for next_state, left in reversed(self._unknown([results], steps_left - 1, memo)):
            self._value(next_state, left, memo, combine)
        return self._expected(results, steps_left - 1, memo)

    def _ask(self, state: Hashable, action: str) -> Sequence[Outcome]:
        self.questions += 1
        if self.questions > self.max_questions:
            raise StateSpaceTooLargeError(
                self.world.name, f"more than {self.max_questions} questions to the world"
            )
        return self.world.truth(state, action)
