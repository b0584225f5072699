"""Sudoku: fill a board that has exactly one solution. Placements cannot be undone.

A placement that breaks the rule changes nothing, and only the completed board is rewarded.
    world = Sudoku.Config(view="grid_coordinates").build()
    world.reset(seed=0)
    world.step("place 3 at row 2 col 1")
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from terrella.core.errors import ConfigError, WorldError
from terrella.core.protocols import View
from terrella.core.solve import Solver
from terrella.core.types import Outcome
from terrella.core.world import StateWorld, World
from terrella.verify.text import LineGain
from terrella.worlds.sudoku.board import Board, fits
from terrella.worlds.sudoku.generator import make_puzzle
from terrella.worlds.sudoku.solver import solve
from terrella.worlds.sudoku.values import SudokuValues
from terrella.worlds.sudoku.views import VIEWS

MOST_BLANKS = {4: 12, 9: 54}
"""Most blanks for which puzzles with a unique solution are found.

No 4 x 4 puzzle has fewer than 4 clues. On 9 x 9 more blanks are possible but rare.
"""


class Sudoku(StateWorld[Board]):
    """Fill a Sudoku board, one digit per action."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The size of the board and the number of empty cells."""

        size: Literal[4, 9] = 4
        blanks: int = 6
        """Empty cells at the start; the solution is unique."""
        view: str = "grid"

        def __post_init__(self) -> None:
            """Reject boards that cannot be generated, and episodes too short to fill one."""
            super().__post_init__()
            if not 1 <= self.blanks <= MOST_BLANKS[self.size]:
                raise ConfigError(
                    "blanks", f"must lie in 1..{MOST_BLANKS[self.size]} for size {self.size}"
                )
            if self.max_steps < self.blanks:
                raise ConfigError(
                    "max_steps", f"{self.max_steps} steps cannot fill {self.blanks} blanks"
                )

    config: Config
    rules = (
        "Fill every empty cell so that each row, each column and each box holds every digit once. "
        "A placement that repeats a digit in a row, a column or a box changes nothing. "
        "A placed digit cannot be changed. There is exactly one solution."
    )
    presets = {
        "hard": Config(blanks=10, max_steps=16),
        "nine": Config(size=9, blanks=40, max_steps=60),
    }
    view_names = tuple(VIEWS)
    verifier = LineGain.Config().build()

    def __init__(self, config: Config) -> None:
        size = config.size
        self._names = [
            [f"place {digit} at row {row} col {column}" for digit in range(1, size + 1)]
            for row in range(1, size + 1)
            for column in range(1, size + 1)
        ]
        self._moves = {
            name: (cell, digit)
            for cell, names in enumerate(self._names)
            for digit, name in enumerate(names, start=1)
        }
        super().__init__(config)

    @property
    def instruction(self) -> str:
        """The rules, the legend and the form of an action (the full list would fill a page)."""
        form = f"Actions: place D at row R col C, with D, R and C from 1 to {self.config.size}."
        return f"{self.rules}\n{self.view.legend}\n{form}"

    def make_view(self, name: str) -> View[Board]:
        return VIEWS[name](self.config.size)

    def draw(self, rng: np.random.Generator) -> Board:
        return Board(make_puzzle(self.config.size, self.config.blanks, rng))

    def legal(self, state: Board) -> tuple[str, ...]:
        """Every digit on every empty cell.

        Knowing which of them the rule allows is part of the task.
        """
        actions: list[str] = []
        for digit, names in zip(state.cells, self._names, strict=True):
            if digit == 0:
                actions += names
        return tuple(actions)

    def all_actions(self, state: Board) -> tuple[str, ...]:
        """Every digit on every cell."""
        return tuple(self._moves)

    def outcomes(self, state: Board, action: str) -> list[Outcome]:
        """Place the digit if the rule allows it; the last one completes the only solution."""
        cell, digit = self._moves.get(action, (0, 0))
        if digit == 0 or not fits(state.cells, cell, digit):
            return [Outcome(state=state)]
        after = Board((*state.cells[:cell], digit, *state.cells[cell + 1 :]))
        won = 0 not in after.cells
        return [Outcome(state=after, reward=float(won), terminated=won, success=won)]

    @functools.cached_property
    def solver(self) -> Solver:
        """Exact values, computed faster than by the general solver."""
        return SudokuValues(cast(Any, self))

    def expert(self, state: Board, steps_left: int, rng: np.random.Generator) -> str:
        """The solution's digit for the first empty cell; any digit if there is no solution."""
        if 0 not in state.cells:
            raise WorldError(self.name, "has no expert action on a full board", "call reset first")
        cell = state.cells.index(0)
        solution = solve(state.cells)
        digit = solution[cell] if solution else 1
        return self._names[cell][digit - 1]
