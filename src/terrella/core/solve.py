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
        best_value = self._value(state, steps_left, self._best, max)
        # Ties are common when there is time to spare: a smaller budget tells which action makes
        # progress.
        for budget in range(1, steps_left + 1):
            best = max(
                proposals,
                key=lambda action: self._action_value(state, action, budget, self._best, max),
            )
            reached = self._action_value(state, best, budget, self._best, max)
            if reached > 0 and reached >= best_value - 1e-12:
                return best
        return max(
            proposals,
            key=lambda action: self._action_value(state, action, steps_left, self._best, max),
        )

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
        if steps_left <= 0:
            return 0.0
        known = memo.get((state, steps_left))
        if known is not None:
            return known
        if len(memo) >= self.max_entries:
            raise StateSpaceTooLargeError(
                self.world.name, f"more than {self.max_entries} (state, step) pairs"
            )
        proposals = self.world.proposals(state)
        if not proposals:
            raise WorldError(self.world.name, "no proposals to choose from")
        value = combine(
            [self._action_value(state, action, steps_left, memo, combine) for action in proposals]
        )
        memo[(state, steps_left)] = value
        return value

    def _action_value(
        self,
        state: Hashable,
        action: str,
        steps_left: int,
        memo: dict[tuple[Hashable, int], float],
        combine: Callable[[list[float]], float],
    ) -> float:
        value = 0.0
        self.questions += 1
        if self.questions > self.max_questions:
            raise StateSpaceTooLargeError(
                self.world.name, f"more than {self.max_questions} questions to the world"
            )
        for result in self.world.truth(state, action):
            if result.terminated:
                value += result.probability * result.success
            else:
                value += result.probability * self._value(
                    result.state, steps_left - 1, memo, combine
                )
        return value
