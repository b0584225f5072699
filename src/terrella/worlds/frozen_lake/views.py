"""Views of a lake: a grid of symbols, coordinates, both, or a compact form.

`read` accepts exact renderings only: it renders the lake it parsed again and compares the texts.
    view = LAKE_VIEWS["grid"](size=4)
    view.read(view.show(lake)) == lake
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import ClassVar

from terrella.core.errors import ConfigError
from terrella.core.protocols import View
from terrella.core.types import Observation, Text
from terrella.worlds.frozen_lake.maps import GOAL, HOLE, ICE, Lake

WITH_PLAYER = {ICE: "P", HOLE: "X", GOAL: "√"}
"""The symbol of a tile with the player on it."""
UNDER_PLAYER = {mark: tile for tile, mark in WITH_PLAYER.items()}

CELL = re.compile(r"\(([0-9]{1,4}),([0-9]{1,4})\)")


def _cell(cell: int, size: int) -> str:
    return f"({cell // size},{cell % size})"


def _cells(cells: Iterable[int], size: int) -> str:
    return " ".join(_cell(cell, size) for cell in cells) or "none"


def _read_cells(text: str, size: int) -> list[int] | None:
    """The cells named in a line, or None when one lies outside the board."""
    positions = [(int(row), int(col)) for row, col in CELL.findall(text)]
    if any(row >= size or col >= size for row, col in positions):
        return None
    return [row * size + col for row, col in positions]


class LakeGridView:
    """The map as rows of symbols, the player drawn over the tile."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.starts = range(0, size * size, size)
        self.legend = (
            f"The board has {size} rows of {size} symbols: "
            f"{WITH_PLAYER[ICE]} player, {ICE} ice, {HOLE} hole, {GOAL} goal, "
            f"{WITH_PLAYER[HOLE]} player in a hole, {WITH_PLAYER[GOAL]} player on the goal."
        )

    def show(self, state: Lake) -> Text:
        tiles, player = state.tiles, state.player
        symbols = f"{tiles[:player]}{WITH_PLAYER[tiles[player]]}{tiles[player + 1 :]}"
        return Text("\n".join([symbols[start : start + self.size] for start in self.starts]))

    def read(self, observation: Observation) -> Lake | None:
        """Parse the grid; None unless size and symbols are right, with one player and one goal."""
        size = self.size
        if not isinstance(observation, Text) or len(observation.text) != size * (size + 1) - 1:
            return None
        symbols = observation.text.replace("\n", "")
        players = [cell for cell, symbol in enumerate(symbols) if symbol in UNDER_PLAYER]
        if len(players) != 1 or len(symbols) != size * size:
            return None
        tiles = "".join(UNDER_PLAYER.get(symbol, symbol) for symbol in symbols)
        if tiles.count(GOAL) != 1 or tiles.strip(ICE + HOLE + GOAL):
            return None
        lake = Lake(tiles, players[0])
        return lake if self.show(lake) == observation else None


class LakeCoordinatesView:
    """The size, player, goal and holes, each cell as (row,column)."""

    def __init__(self, size: int) -> None:
        self.size = size
        cells = (_cell(cell, size) for cell in range(size * size))
        titles = (f"Size: {size}x{size}\nPlayer: ", "\nGoal: ", "\nHoles: ", "none")
        self.vocabulary = (*titles, *cells)
        self.max_chars = 64 + len(_cell(size * size - 1, size) + " ") * (size * size + 2)
        self.legend = (
            f"The board has {size} rows and {size} columns. Cells are (row,column), "
            f"counted from (0,0) at the top left to ({size - 1},{size - 1}) at the bottom right. "
            "Cells that are not named are ice. The player can be in a hole or on the goal."
        )

    def show(self, state: Lake) -> Text:
        size, tiles = self.size, state.tiles
        holes = (cell for cell, tile in enumerate(tiles) if tile == HOLE)
        return Text(
            f"Size: {size}x{size}\nPlayer: {_cell(state.player, size)}\n"
            f"Goal: {_cell(tiles.index(GOAL), size)}\nHoles: {_cells(holes, size)}"
        )

    def read(self, observation: Observation) -> Lake | None:
        if not isinstance(observation, Text) or len(observation.text) > self.max_chars:
            return None
        lines = [_read_cells(line, self.size) for line in observation.text.split("\n")]
        match lines:
            case [[], [player], [goal], list(holes)]:
                tiles = [ICE] * (self.size * self.size)
                for hole in holes:
                    tiles[hole] = HOLE
                tiles[goal] = GOAL
                lake = Lake("".join(tiles), player)
                return lake if self.show(lake) == observation else None
        return None


class LakeCompactView:
    """Player with its tile, goal and holes in a line each, cells as two digits: `P31 ice`.

    For language models on small machines: a step changes one line of four tokens.
    """

    TILES: ClassVar[dict[str, str]] = {ICE: "ice", HOLE: "hole", GOAL: "goal"}

    def __init__(self, size: int) -> None:
        if size > 10:
            raise ConfigError("frozen_lake.view", f"compact has one digit a row, and {size} rows")
        self.size = size
        self.vocabulary = (*self.TILES.values(),)
        self.legend = (
            "P is you with what is under you, G the goal, H the holes; all other cells are ice. "
            "A cell is its row and its column, counted from 00 at the top left."
        )

    def show(self, state: Lake) -> Text:
        tiles = state.tiles
        holes = [cell for cell, tile in enumerate(tiles) if tile == HOLE]
        return Text(
            f"P{self._cell(state.player)} {self.TILES[tiles[state.player]]}\n"
            f"G{self._cell(tiles.index(GOAL))}\n"
            f"H{' '.join(map(self._cell, holes)) or '-'}"
        )

    def _cell(self, cell: int) -> str:
        return f"{cell // self.size}{cell % self.size}"

    def read(self, observation: Observation) -> Lake | None:
        if not isinstance(observation, Text) or len(observation.text) > 32 + 3 * self.size**2:
            return None
        lines = [self._read_cells(line) for line in observation.text.split("\n")]
        match lines:
            case [[player], [goal], list(holes)]:
                tiles = [ICE] * (self.size * self.size)
                for hole in holes:
                    tiles[hole] = HOLE
                tiles[goal] = GOAL
                lake = Lake("".join(tiles), player)
                return lake if self.show(lake) == observation else None
        return None

    def _read_cells(self, line: str) -> list[int] | None:
        positions = [(int(row), int(col)) for row, col in re.findall("([0-9])([0-9])", line)]
        if any(row >= self.size or col >= self.size for row, col in positions):
            return None
        return [row * self.size + col for row, col in positions]


class LakeGridCoordinatesView:
    """The grid, followed by the coordinates."""

    def __init__(self, size: int) -> None:
        self.grid = LakeGridView(size)
        self.coordinates = LakeCoordinatesView(size)
        self.legend = f"{self.grid.legend}\nBelow it the same in words. {self.coordinates.legend}"

    def show(self, state: Lake) -> Text:
        return Text(f"{self.grid.show(state).text}\n{self.coordinates.show(state).text}")

    def read(self, observation: Observation) -> Lake | None:
        """Parse the grid; None unless the coordinates describe the same lake."""
        if not isinstance(observation, Text):
            return None
        size = self.grid.size
        lake = self.grid.read(Text(observation.text[: size * (size + 1) - 1]))
        return lake if lake is not None and self.show(lake) == observation else None


LAKE_VIEWS: dict[str, Callable[[int], View[Lake]]] = {
    "grid": LakeGridView,
    "coordinates": LakeCoordinatesView,
    "grid_coordinates": LakeGridCoordinatesView,
    "compact": LakeCompactView,
}
