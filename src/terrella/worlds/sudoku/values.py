"""Exact values of Sudoku, with a shortcut: a wrong placement that fits loses for good.

So only the set of empty cells matters, and the boards to visit are the subsets of the blanks.
`Sudoku.solver` uses this in place of the general solver, which gives the same values and takes much
longer.
    SudokuValues(world).random_value(board, steps_left=10)
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import cast

from terrella.core.solve import Solver, StateSpaceTooLargeError
from terrella.worlds.sudoku.board import Board, Cells, fits
from terrella.worlds.sudoku.solver import solutions, solve


class SudokuValues(Solver):
    """Values of boards with at most one solution: this world reaches no others."""

    def random_value(self, state: Hashable, steps_left: int) -> float:
        """Probability that uniformly random placements complete the board."""
        cells = cast(Board, state).cells
        blanks = cells.count(0)
        first_two = list(itertools.islice(solutions(cells), 2))
        if not first_two or blanks > steps_left:
            return 0.0
        if len(first_two) > 1:  # not a board of this world: the shortcut does not hold
            return super().random_value(state, steps_left)
        if 2**blanks * steps_left > self.max_entries:
            raise StateSpaceTooLargeError(
                self.world.name, f"{blanks} blanks leave 2^{blanks} boards to visit"
            )
        return _completion_probabilities(cells, first_two[0], steps_left, {})[steps_left]

    def best_value(self, state: Hashable, steps_left: int) -> float:
        """1 if the board can still be completed in time, else 0."""
        board = cast(Board, state)
        return float(board.cells.count(0) <= steps_left and solve(board.cells) is not None)


def _completion_probabilities(
    cells: Cells, solution: Cells, horizon: int, cache: dict[Cells, list[float]]
) -> list[float]:
    """The probability that random placements complete the board, for 0..horizon steps."""
    empty = [cell for cell, digit in enumerate(cells) if digit == 0]
    if not empty:
        return [1.0] * (horizon + 1)
    if cells in cache:
        return cache[cells]
    successors = []
    for cell in empty:
        filled = (*cells[:cell], solution[cell], *cells[cell + 1 :])
        successors.append(_completion_probabilities(filled, solution, horizon, cache))
    choices = len(empty) * Board(cells).size
    no_effect = 1.0 - _count_fitting(cells, empty) / choices
    result = [0.0]
    for step in range(horizon):
        progress = sum(successor[step] for successor in successors) / choices
        result.append(progress + no_effect * result[step])
    cache[cells] = result
    return result


def _count_fitting(cells: Cells, empty: list[int]) -> int:
    """Count the placements that change the board: the right ones, and those that lose for good."""
    return sum(
        fits(cells, cell, digit) for cell in empty for digit in range(1, Board(cells).size + 1)
    )
