"""Enumerate the solutions of a board lazily, by depth-first search.

The search always fills the cell with the fewest candidates. A second solution shows that a puzzle
is not unique.
    solve(cells)
    count_solutions(cells, limit=2) == 1
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np

from terrella.worlds.sudoku.board import Cells


def solutions(cells: Cells, rng: np.random.Generator | None = None) -> Iterator[Cells]:
    """Yield all solutions.

    With `rng`, digits are tried in random order, so that any solution can come first.
    """
    search = _Search(cells, rng)
    if search.is_consistent:
        yield from search.run()


def solve(cells: Cells) -> Cells | None:
    """Return one solution, or None when there is none."""
    return next(solutions(cells), None)


def count_solutions(cells: Cells, limit: int) -> int:
    """Count the solutions, up to `limit`."""
    return sum(1 for _ in itertools.islice(solutions(cells), limit))


@functools.cache
def _units(size: int) -> tuple[tuple[int, int, int], ...]:
    """For each cell its row, column and box, as indices into one list of all units."""
    box = math.isqrt(size)
    return tuple(
        (row, size + column, 2 * size + row // box * box + column // box)
        for row in range(size)
        for column in range(size)
    )


class _Search:
    """A board being filled, with the digits used by each row, column and box as bit masks."""

    def __init__(self, cells: Cells, rng: np.random.Generator | None) -> None:
        size = math.isqrt(len(cells))
        self.cells = list(cells)
        self.rng = rng
        self.digits = range(1, size + 1)
        self.units = _units(size)
        self.used = [0] * (3 * size)
        self.is_consistent = True
        for cell, digit in enumerate(cells):
            if digit:
                self.is_consistent &= not any(
                    self.used[unit] >> digit & 1 for unit in self.units[cell]
                )
                self._flip(cell, digit)

    def run(self) -> Iterator[Cells]:
        cell, candidates = self._most_constrained()
        if cell < 0:
            yield tuple(self.cells)
            return
        if self.rng is not None:
            self.rng.shuffle(candidates)
        for digit in candidates:
            self.cells[cell] = digit
            self._flip(cell, digit)
            yield from self.run()
            self._flip(cell, digit)
            self.cells[cell] = 0

    def _flip(self, cell: int, digit: int) -> None:
        for unit in self.units[cell]:
            self.used[unit] ^= 1 << digit

    def _most_constrained(self) -> tuple[int, list[int]]:
        """The empty cell with the fewest candidates, and these; cell -1 when the board is full."""
        best, best_used, most = -1, 0, -1
        for cell, digit in enumerate(self.cells):
            if digit == 0:
                row, column, box = self.units[cell]
                used = self.used[row] | self.used[column] | self.used[box]
                if used.bit_count() > most:
                    best, best_used, most = cell, used, used.bit_count()
        return best, [digit for digit in self.digits if not best_used >> digit & 1]
