"""Views of a board: a grid of rows, a list of cells, or the grid and a list of the empty cells.

No view shows candidates or whether a digit is right: that would give the solution away.
    SudokuGridView(4).read(SudokuGridView(4).show(board)) == board
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from terrella.core.types import Observation, Text
from terrella.worlds.sudoku.board import Board, Cells, is_consistent

EMPTY = "."


class BoardView(ABC):
    """A text view.

    `read` extracts the cells, then accepts them only if they would be written exactly like that.
    """

    about: str
    """The part of the legend that describes this view."""

    def __init__(self, size: int) -> None:
        """`size` is the number of rows."""
        self.size = size
        self.box = math.isqrt(size)
        self.symbols = EMPTY + "123456789"[:size]
        self.legend = (
            f"The board has {size} rows and {size} columns "
            f"in boxes of {self.box} x {self.box}. {self.about}"
        )

    def show(self, state: Board) -> Observation:
        return Text(self.write(state.cells))

    def read(self, observation: Observation) -> Board | None:
        """Parse a rendering; None for any other text, and for boards that break the rule."""
        if not isinstance(observation, Text):
            return None
        cells = self.extract(observation.text)
        if len(cells) != self.size**2 or not is_consistent(cells):
            return None
        return Board(cells) if self.write(cells) == observation.text else None

    @abstractmethod
    def write(self, cells: Cells) -> str:
        """Render the cells."""

    @abstractmethod
    def extract(self, text: str) -> Cells:
        """The cells that the text describes, assuming that this view rendered it."""

    def cell_names(self, cells: Cells) -> list[str]:
        """The name of each cell: (row,column), counted from 1."""
        return [f"({cell // self.size + 1},{cell % self.size + 1})" for cell in range(len(cells))]


class SudokuGridView(BoardView):
    """One line per row, with a bar between boxes."""

    about = (
        "One line is one row; | separates boxes, . is an empty cell. Rows and columns count from 1."
    )

    def write(self, cells: Cells) -> str:
        return "\n".join(
            self._row(cells[start : start + self.size]) for start in range(0, len(cells), self.size)
        )

    def _row(self, row: Cells) -> str:
        boxes = [row[start : start + self.box] for start in range(0, self.size, self.box)]
        return " | ".join(" ".join(self.symbols[digit] for digit in box) for box in boxes)

    def extract(self, text: str) -> Cells:
        return tuple(self.symbols.index(symbol) for symbol in text if symbol in self.symbols)


class SudokuCoordinatesView(BoardView):
    """One line per cell."""

    about = (
        "One line is one cell: (row,column), counted from 1, then its digit, or . when it is empty."
    )

    def write(self, cells: Cells) -> str:
        named = zip(self.cell_names(cells), cells, strict=True)
        return "\n".join(f"{name} {self.symbols[digit]}" for name, digit in named)

    def extract(self, text: str) -> Cells:
        """Read the last character of each line."""
        symbols = (line[-1:] for line in text.split("\n"))
        return tuple(
            self.symbols.index(symbol) for symbol in symbols if symbol and symbol in self.symbols
        )


class SudokuGridCoordinatesView(SudokuGridView):
    """The rows, then one line with the names of the empty cells."""

    about = SudokuGridView.about + " The last line lists the empty cells as (row,column)."

    def write(self, cells: Cells) -> str:
        named = zip(self.cell_names(cells), cells, strict=True)
        empty = [name for name, digit in named if digit == 0]
        return f"{super().write(cells)}\nEmpty: {', '.join(empty) or 'none'}"

    def extract(self, text: str) -> Cells:
        """Read the rows only: the last line follows from them."""
        return super().extract(text.rpartition("\n")[0])


VIEWS: dict[str, type[BoardView]] = {
    "grid": SudokuGridView,
    "coordinates": SudokuCoordinatesView,
    "grid_coordinates": SudokuGridCoordinatesView,
}
