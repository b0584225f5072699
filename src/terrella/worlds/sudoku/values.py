"""Exact values of Sudoku by its one shortcut: a wrong placement that fits loses for good.

So all that matters is which cells are still empty, and the boards to look at are the subsets of the blanks.
The hook is `StateWorld.solver`; the general solver gives the same values and takes much longer.
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
    """Values of boards with at most one solution, which is all that this world can reach."""

    def random_value(self, state: Hashable, steps_left: int) -> float:
        """Probability that uniformly random placements complete the board."""
        cells = cast(Board, state).cells
        found, blanks = list(itertools.islice(solutions(cells), 2)), cells.count(0)
        if not found or blanks > steps_left:
            return 0.0
        if len(found) > 1:  # not a board of this world: there the shortcut does not hold
            return super().random_value(state, steps_left)
        if 2**blanks * steps_left > self.max_entries:
            raise StateSpaceTooLargeError(self.world.name, f"{blanks} blanks leave 2^{blanks} boards to look at")
        return _chances(cells, found[0], steps_left, {})[steps_left]

    def best_value(self, state: Hashable, steps_left: int) -> float:
        """1 where the board can still be completed in time, else 0."""
        board = cast(Board, state)
        return float(board.cells.count(0) <= steps_left and solve(board.cells) is not None)


def _chances(cells: Cells, solution: Cells, horizon: int, known: dict[Cells, list[float]]) -> list[float]:
    """For each number of steps up to the horizon, the chance to complete this part of the solution at random."""
    empty = [cell for cell, digit in enumerate(cells) if digit == 0]
    if not empty:
        return [1.0] * (horizon + 1)
    if cells not in known:
        right = [
            _chances((*cells[:cell], solution[cell], *cells[cell + 1 :]), solution, horizon, known) for cell in empty
        ]
        choices = len(empty) * Board(cells).size
        stays = 1.0 - _fitting(cells, empty) / choices
        chances = [0.0]
        for step in range(horizon):
            chances.append(sum(after[step] for after in right) / choices + stays * chances[step])
        known[cells] = chances
    return known[cells]


def _fitting(cells: Cells, empty: list[int]) -> int:
    """How many placements change the board: the right ones go on, the others lose."""
    return sum(fits(cells, cell, digit) for cell in empty for digit in range(1, Board(cells).size + 1))
