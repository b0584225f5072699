"""Generate puzzles with exactly one solution.

Start from a full grid and remove digits while the solution stays unique. All randomness comes from
the generator that is passed in; no global one is read or seeded.
    make_puzzle(size=4, blanks=6, rng=rng)
"""

from __future__ import annotations

import functools
import math

import numpy as np

from terrella.core.errors import WorldError
from terrella.worlds.sudoku.board import Cells, fits
from terrella.worlds.sudoku.solver import solutions, solve

MAX_ORDERS = 200
"""Removal orders to try on one grid: an unlucky order gets stuck early."""


@functools.cache
def small_grids() -> tuple[Cells, ...]:
    """All 288 full 4 x 4 grids."""
    return tuple(solutions((0,) * 16))


def full_grid(size: int, rng: np.random.Generator) -> Cells:
    """Draw a full grid.

    4 x 4 grids are drawn uniformly from all 288. 9 x 9 grids come from a search with shuffled
    digits, which can give any grid, but not uniformly.
    """
    if size == 4:
        return small_grids()[int(rng.integers(len(small_grids())))]
    return next(solutions((0,) * size**2, rng))


def make_puzzle(size: int, blanks: int, rng: np.random.Generator) -> Cells:
    """Draw a board with that many empty cells and exactly one solution."""
    grid = full_grid(size, rng)
    # When an order gets stuck, another one is tried on the same grid. Drawing a new grid would
    # favour grids from which digits are easy to remove.
    for _ in range(MAX_ORDERS):
        puzzle = dig(grid, blanks, [int(cell) for cell in rng.permutation(len(grid))])
        if puzzle.count(0) == blanks:
            return puzzle
    raise WorldError(
        "sudoku",
        f"found no unique {size} x {size} puzzle with {blanks} blanks",
        "lower blanks",
    )


def dig(grid: Cells, blanks: int, order: list[int]) -> Cells:
    """Empty cells in this order until there are enough blanks.

    Cells that would allow a second solution are skipped.
    """
    cells = grid
    for cell in order:
        if cells.count(0) == blanks:
            break
        emptied = (*cells[:cell], 0, *cells[cell + 1 :])
        if not _has_other_digit(emptied, cell, grid[cell]):
            cells = emptied
    return cells


def _has_other_digit(cells: Cells, cell: int, digit: int) -> bool:
    """Whether some solution has another digit in this cell.

    If not, a board whose solution was unique stays unique.
    """
    for other in range(1, math.isqrt(len(cells)) + 1):
        if other == digit or not fits(cells, cell, other):
            continue
        if solve((*cells[:cell], other, *cells[cell + 1 :])) is not None:
            return True
    return False
