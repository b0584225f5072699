"""Sudoku, 4 x 4 and 9 x 9. See README.md in this folder."""

from terrella.worlds.sudoku.env import Sudoku

__all__ = ["Sudoku"]
