"""How a board is written, and read back: as rows, as a list of cells, or as rows and the empty cells.

No view shows candidates or whether a digit is right: that would give the solution away.
    GridView(4).read(GridView(4).show(board)) == board
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from terrella.core.types import Observation, Text
from terrella.worlds.sudoku.board import Board, Cells, is_consistent

EMPTY = "."


class BoardView(ABC):
    """A text view. Reading guesses the cells, then accepts them only if they would be written just so."""

    about: str
    """What is special to this view; the legend adds the size of the board."""

    def __init__(self, size: int) -> None:
        """`size` is the number of rows."""
        self.size, self.box = size, math.isqrt(size)
        self.symbols = EMPTY + "123456789"[:size]
        self.legend = f"The board has {size} rows and {size} columns in boxes of {self.box} x {self.box}. {self.about}"

    def show(self, state: Board) -> Observation:
        """Write the board."""
        return Text(self.write(state.cells))

    def read(self, observation: Observation) -> Board | None:
        """The board again; None for any other text, and for boards that break the rule."""
        if not isinstance(observation, Text):
            return None
        cells = self.guess(observation.text)
        if len(cells) != self.size**2 or not is_consistent(cells) or self.write(cells) != observation.text:
            return None
        return Board(cells)

    @abstractmethod
    def write(self, cells: Cells) -> str:
        """The text."""

    @abstractmethod
    def guess(self, text: str) -> Cells:
        """The cells that the text would mean if it was written by this view."""

    def places(self, cells: Cells) -> list[str]:
        """The name of each cell: (row,column), counted from 1."""
        return [f"({cell // self.size + 1},{cell % self.size + 1})" for cell in range(len(cells))]


class GridView(BoardView):
    """One line a row; a bar between boxes."""

    about = "One line is one row; | separates boxes, . is an empty cell. Rows and columns count from 1."

    def write(self, cells: Cells) -> str:
        """Rows of digits and dots."""
        return "\n".join(self._row(cells[start : start + self.size]) for start in range(0, len(cells), self.size))

    def _row(self, row: Cells) -> str:
        boxes = [row[start : start + self.box] for start in range(0, self.size, self.box)]
        return " | ".join(" ".join(self.symbols[digit] for digit in box) for box in boxes)

    def guess(self, text: str) -> Cells:
        """All digits and dots, in order."""
        return tuple(self.symbols.index(mark) for mark in text if mark in self.symbols)


class CoordinatesView(BoardView):
    """One line a cell."""

    about = "One line is one cell: (row,column), counted from 1, then its digit, or . when it is empty."

    def write(self, cells: Cells) -> str:
        """Every cell by name."""
        marks = (self.symbols[digit] for digit in cells)
        return "\n".join(f"{place} {mark}" for place, mark in zip(self.places(cells), marks, strict=True))

    def guess(self, text: str) -> Cells:
        """The last character of each line."""
        return tuple(self.symbols.index(line[-1]) for line in text.split("\n") if line and line[-1] in self.symbols)


class GridCoordinatesView(GridView):
    """The rows, then the names of the empty cells."""

    about = GridView.about + " The last line lists the empty cells as (row,column)."

    def write(self, cells: Cells) -> str:
        """Rows, then one line of names."""
        empty = [place for place, digit in zip(self.places(cells), cells, strict=True) if digit == 0]
        return f"{super().write(cells)}\nEmpty: {', '.join(empty) or 'none'}"

    def guess(self, text: str) -> Cells:
        """The digits and dots of the rows; the last line follows from them."""
        return super().guess(text.rpartition("\n")[0])


VIEWS: dict[str, type[BoardView]] = {
    "grid": GridView, "coordinates": CoordinatesView, "grid_coordinates": GridCoordinatesView,
}  # fmt: skip
