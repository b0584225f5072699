"""The board and its one rule: no digit twice in a row, a column or a box.

Cells are numbered row by row and hold 0 when empty.
    Board(cells).size
    fits(cells, cell=0, digit=3)
    is_consistent(cells)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

Cells = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """All cells, row by row, 0 for empty.

    Clues and placed digits are not distinguished, because neither can be changed.
    """

    cells: Cells

    @property
    def size(self) -> int:
        """The number of rows, of columns and of digits."""
        return math.isqrt(len(self.cells))


@functools.cache
def peers(size: int) -> tuple[tuple[int, ...], ...]:
    """For each cell, the other cells of its row, column and box."""
    cells = range(size * size)
    return tuple(
        tuple(other for other in cells if other != cell and _share_unit(cell, other, size))
        for cell in cells
    )


def _share_unit(first: int, second: int, size: int) -> bool:
    """Whether two cells lie in the same row, column or box."""
    box = math.isqrt(size)
    row, column = divmod(first, size)
    other_row, other_column = divmod(second, size)
    same_box = (row // box, column // box) == (other_row // box, other_column // box)
    return row == other_row or column == other_column or same_box


def fits(cells: Cells, cell: int, digit: int) -> bool:
    """Whether the cell is empty and none of its peers holds the digit."""
    return cells[cell] == 0 and all(
        cells[other] != digit for other in peers(math.isqrt(len(cells)))[cell]
    )


def is_consistent(cells: Cells) -> bool:
    """Whether no digit appears twice in a row, a column or a box."""
    peers_of = peers(math.isqrt(len(cells)))
    return all(
        digit == 0 or all(cells[other] != digit for other in peers_of[cell])
        for cell, digit in enumerate(cells)
    )
