"""The solver against values worked out by hand."""

import pytest

from terrella.core.errors import WorldError
from terrella.core.solve import Solver, StateSpaceTooLargeError
from terrella.core.types import Outcome
from terrella.worlds.counter import Count, Counter
from terrella.worlds.frozen_lake import FrozenLake


class Line:
    """Cells 0..3: 3 wins, 0 is a pit.

    `walk` goes right, or with probability 1/4 left; `wait` does nothing.
    """

    name = "line"

    def proposals(self, state):
        return ("wait", "walk")

    def truth(self, state, action):
        if action == "wait":
            return [Outcome(state=state)]
        return [self.land(state + 1, 0.75), self.land(state - 1, 0.25)]

    def land(self, cell, probability):
        return Outcome(
            state=cell, terminated=cell in (0, 3), success=cell == 3, probability=probability
        )


BEST = {
    (2, 0): 0.0,
    (2, 1): 0.75,
    (1, 1): 0.0,
    (1, 2): 0.5625,
    (2, 2): 0.75,
    (2, 3): 0.75 + 0.25 * 0.5625,
}
RANDOM = {
    (2, 0): 0.0,
    (2, 1): 0.375,
    (1, 1): 0.0,
    (1, 2): 0.5 * 0.0 + 0.5 * 0.75 * 0.375,
    (2, 2): 0.5 * 0.375 + 0.375,
}


@pytest.mark.parametrize(("question", "value"), BEST.items())
def test_best_values(question, value):
    assert Solver(Line()).best_value(*question) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(("question", "value"), RANDOM.items())
def test_random_values(question, value):
    assert Solver(Line()).random_value(*question) == pytest.approx(value, abs=1e-12)


def test_with_time_to_spare_the_best_action_still_makes_progress():
    solver = Solver(Counter.Config().build())
    for value, steps in ((3, 50), (7, 50), (4, 1)):
        assert solver.best_action(Count(value, 5), steps) == ("up" if value < 5 else "down")


def test_no_steps_left_is_no_chance_and_no_endless_recursion():
    solver = Solver(Line())
    assert solver.best_value(2, 0) == solver.random_value(2, 0) == 0.0
    assert solver.best_action(2, 0) in ("wait", "walk")


def test_a_long_horizon_is_no_matter_of_pythons_stack():
    lake = FrozenLake.Config(size=3, max_steps=1500).build()
    lake.reset(seed=0)
    assert 0 < lake.solver.random_value(lake.state, 1500) <= 1
    assert Solver(Counter.Config().build()).best_action(Count(103, 97), 2000) == "down"


def test_what_is_too_large_says_so_and_does_not_poison_the_next_question():
    solver = Solver(Counter.Config().build(), max_entries=50)
    with pytest.raises(StateSpaceTooLargeError, match="counter"):
        solver.best_value(Count(0, 90), 30)
    assert solver.best_value(Count(4, 5), 1) == 1.0


def test_a_world_without_proposals_is_named():
    class Mute(Line):
        def proposals(self, state):
            return ()

    for ask in (Solver(Mute()).best_action, Solver(Mute()).best_value, Solver(Mute()).random_value):
        with pytest.raises(WorldError, match="line: no proposals"):
            ask(1, 2)
