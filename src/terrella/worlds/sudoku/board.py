"""The board and its one rule: no digit twice in a row, a column or a box. Everything else asks here.

Cells are numbered row by row and hold 0 when empty.
    Board(cells).size; fits(cells, cell=0, digit=3); is_consistent(cells)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

Cells = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """All cells, row by row, 0 for empty. Clues and placed digits look alike: neither can be changed."""

    cells: Cells

    @property
    def size(self) -> int:
        """How many rows, columns and digits there are."""
        return math.isqrt(len(self.cells))


@functools.cache
def peers(size: int) -> tuple[tuple[int, ...], ...]:
    """For each cell, the other cells of its row, column and box."""
    box = math.isqrt(size)
    places = [(row, column) for row in range(size) for column in range(size)]

    def meets(a: tuple[int, int], b: tuple[int, int]) -> bool:
        return a[0] == b[0] or a[1] == b[1] or (a[0] // box, a[1] // box) == (b[0] // box, b[1] // box)

    return tuple(
        tuple(other for other, there in enumerate(places) if there != here and meets(here, there)) for here in places
    )


def fits(cells: Cells, cell: int, digit: int) -> bool:
    """Whether the cell is empty and no cell that it meets holds the digit."""
    return cells[cell] == 0 and all(cells[other] != digit for other in peers(math.isqrt(len(cells)))[cell])


def is_consistent(cells: Cells) -> bool:
    """Whether no digit stands twice in a row, a column or a box."""
    meeting = peers(math.isqrt(len(cells)))
    return all(digit == 0 or all(cells[other] != digit for other in meeting[cell]) for cell, digit in enumerate(cells))
