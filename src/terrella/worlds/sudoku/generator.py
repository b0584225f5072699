"""Puzzles with exactly one solution: a full grid, then cells dug out while the solution stays unique.

All randomness comes from the generator that is passed in; no global one is read or seeded.
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
"""Orders of digging to try on one grid: an unlucky order gets stuck early, another one goes on."""


@functools.cache
def small_grids() -> tuple[Cells, ...]:
    """All 288 full 4 x 4 grids."""
    return tuple(solutions((0,) * 16))


def full_grid(size: int, rng: np.random.Generator) -> Cells:
    """A full grid: 4 x 4 uniformly among all 288; 9 x 9 by search with shuffled digits (any grid, not uniformly)."""
    if size == 4:
        return small_grids()[int(rng.integers(len(small_grids())))]
    return next(solutions((0,) * size**2, rng))


def make_puzzle(size: int, blanks: int, rng: np.random.Generator) -> Cells:
    """A board with that many empty cells and exactly one solution."""
    grid = full_grid(size, rng)
    # The grid is kept when an order gets stuck: drawing another would favour grids that are easy to dig.
    for _ in range(MAX_ORDERS):
        dug = dig(grid, blanks, [int(cell) for cell in rng.permutation(len(grid))])
        if dug.count(0) == blanks:
            return dug
    raise WorldError("sudoku", f"no unique {size} x {size} puzzle with {blanks} blanks", "lower blanks")


def dig(grid: Cells, blanks: int, order: list[int]) -> Cells:
    """Empty cells in that order, skipping those that would allow a second solution, until there are enough."""
    cells = grid
    for cell in order:
        if cells.count(0) == blanks:
            break
        emptied = (*cells[:cell], 0, *cells[cell + 1 :])
        if not _has_other_digit(emptied, cell, grid[cell]):
            cells = emptied
    return cells


def _has_other_digit(cells: Cells, cell: int, digit: int) -> bool:
    """Whether some solution has another digit there; if none has, a board that was unique stays unique."""
    others = [other for other in range(1, math.isqrt(len(cells)) + 1) if other != digit and fits(cells, cell, other)]
    return any(solve((*cells[:cell], other, *cells[cell + 1 :])) is not None for other in others)
