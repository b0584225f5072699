"""What a model is shown of a room: a grid of symbols, coordinates, or both. Each can be read back exactly.

`read` accepts a rendering and nothing else: it rebuilds the text of what it understood and compares.
    view = ROOM_VIEWS["grid"](size=6, boxes=1, symbols="#_O√XPS")
    view.read(view.show(room)) == room
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from terrella.core.protocols import View
from terrella.core.types import Observation, Text
from terrella.worlds.sokoban.room import FLOOR, TARGET, WALL, Room

MEANINGS = ("wall", "floor", "target", "box on target", "box", "player", "player on target")
"""What the seven symbols stand for, in the order in which a config gives them."""
TILES = (WALL, FLOOR, TARGET, TARGET, FLOOR, FLOOR, TARGET)
"""What lies under each of them."""

CELL = re.compile(r"\(([0-9]{1,4}),([0-9]{1,4})\)")


@lru_cache(maxsize=4096)
def _drawn(layout: str, size: int, symbols: str) -> str:
    """The empty room in symbols, with line ends: the part that stays the same for a whole episode."""
    text = layout.translate(str.maketrans(WALL + FLOOR + TARGET, symbols[:3]))
    return "\n".join(text[start : start + size] for start in range(0, len(text), size))


def _is_closed(layout: str, size: int) -> bool:
    """True when the border is all wall."""
    sides = layout[::size] + layout[size - 1 :: size]
    return not (layout[:size] + layout[-size:] + sides).strip(WALL)


class GridView:
    """The room as rows of symbols."""

    def __init__(self, size: int, boxes: int, symbols: str) -> None:
        """`symbols` are seven characters in the order of `MEANINGS`."""
        self.size, self.boxes, self.symbols = size, boxes, symbols
        self.index = {symbol: index for index, symbol in enumerate(symbols)}
        meanings = ", ".join(f"{symbol} {meaning}" for symbol, meaning in zip(symbols, MEANINGS, strict=True))
        self.legend = f"The room has {size} rows of {size} symbols: {meanings}."
        wall = symbols[0]
        self.words = (f"{wall * size}\n{wall}", f"{wall}\n{wall}")
        """The border: worth a token a piece in a small vocabulary, and every room is as long as any other."""

    def show(self, state: Room) -> Text:
        """The rows, one a line."""
        layout, size, symbols = state.layout, self.size, self.symbols
        text = list(_drawn(layout, size, symbols))
        for box in state.boxes:
            text[box + box // size] = symbols[3 if layout[box] == TARGET else 4]
        text[state.player + state.player // size] = symbols[6 if layout[state.player] == TARGET else 5]
        return Text("".join(text))

    def read(self, observation: Observation) -> Room | None:
        """The room that was drawn, or None: wrong size, not one player, other boxes or targets, no border."""
        size = self.size
        if not isinstance(observation, Text) or len(observation.text) != size * (size + 1) - 1:
            return None
        found = [self.index.get(symbol, -1) for symbol in observation.text.replace("\n", "")]
        if -1 in found or len(found) != size * size:
            return None
        players = [cell for cell, index in enumerate(found) if index in (5, 6)]
        boxes = tuple(cell for cell, index in enumerate(found) if index in (3, 4))
        layout = "".join(TILES[index] for index in found)
        if len(players) != 1 or not len(boxes) == layout.count(TARGET) == self.boxes or not _is_closed(layout, size):
            return None
        room = Room(layout, boxes, players[0])
        return room if self.show(room) == observation else None


class CoordinatesView:
    """The room in words: size, player, boxes, targets and inner walls, each cell as (row,column)."""

    def __init__(self, size: int, boxes: int, symbols: str) -> None:
        """The symbols are not used: this view has none."""
        self.size, self.boxes = size, boxes
        self.inside = [row * size + col for row in range(1, size - 1) for col in range(1, size - 1)]
        self.longest = 64 + len(f"({size},{size}) ") * (size * size + 2 * boxes)
        titles = (f"Size: {size}x{size}\nPlayer: ", "\nBoxes: ", "\nTargets: ", "\nInner walls: ", "none")
        self.words = (*titles, *(self._cells([cell]) for cell in self.inside))
        """What every rendering repeats: worth a token each in a small vocabulary."""
        self.legend = (
            f"The room has {size} rows and {size} columns. Cells are (row,column), counted from (0,0) at the top "
            f"left to ({size - 1},{size - 1}) at the bottom right. Row 0, row {size - 1}, column 0 and column "
            f"{size - 1} are all wall; inner walls are listed. All other cells are floor."
        )

    def show(self, state: Room) -> Text:
        """One line each for size, player, boxes, targets and inner walls."""
        layout, size = state.layout, self.size
        targets = (cell for cell in self.inside if layout[cell] == TARGET)
        walls = (cell for cell in self.inside if layout[cell] == WALL)
        return Text(
            f"Size: {size}x{size}\nPlayer: {self._cells([state.player])}\nBoxes: {self._cells(state.boxes)}\n"
            f"Targets: {self._cells(targets)}\nInner walls: {self._cells(walls)}"
        )

    def _cells(self, cells: Iterable[int]) -> str:
        return " ".join(f"({cell // self.size},{cell % self.size})" for cell in cells) or "none"

    def read(self, observation: Observation) -> Room | None:
        """The room that was described, or None."""
        if not isinstance(observation, Text) or len(observation.text) > self.longest:
            return None
        lines = [self._read_cells(line) for line in observation.text.split("\n")]
        match lines:
            case [[], [player], list(boxes), list(targets), list(walls)]:
                room = self._room(player, boxes, targets, walls)
                return room if room is not None and self.show(room) == observation else None
        return None

    def _read_cells(self, line: str) -> list[int] | None:
        """The cells named in a line, or None when one lies outside the room or on its border."""
        last = self.size - 1
        places = [(int(row), int(col)) for row, col in CELL.findall(line)]
        inside = all(0 < row < last and 0 < col < last for row, col in places)
        return [row * self.size + col for row, col in places] if inside else None

    def _room(self, player: int, boxes: list[int], targets: list[int], walls: list[int]) -> Room | None:
        """The room with these things in it, or None when two of them share a cell that they cannot share."""
        numbers_fit = len(set(boxes)) == len(set(targets)) == self.boxes
        if not numbers_fit or player in boxes or {player, *boxes, *targets} & set(walls):
            return None
        layout = [WALL] * (self.size * self.size)
        for cell in self.inside:
            layout[cell] = WALL if cell in walls else TARGET if cell in targets else FLOOR
        return Room("".join(layout), tuple(sorted(set(boxes))), player)


class GridCoordinatesView:
    """The grid, and below it the same in coordinates."""

    def __init__(self, size: int, boxes: int, symbols: str) -> None:
        """As for the grid."""
        self.grid, self.coordinates = GridView(size, boxes, symbols), CoordinatesView(size, boxes, symbols)
        self.legend = f"{self.grid.legend}\nBelow it the same in words. {self.coordinates.legend}"

    def show(self, state: Room) -> Text:
        """Both texts, the grid first."""
        return Text(f"{self.grid.show(state).text}\n{self.coordinates.show(state).text}")

    def read(self, observation: Observation) -> Room | None:
        """The room that both parts describe, or None when one is wrong or they disagree."""
        if not isinstance(observation, Text):
            return None
        size = self.grid.size
        room = self.grid.read(Text(observation.text[: size * (size + 1) - 1]))
        return room if room is not None and self.show(room) == observation else None


class _MakesView(Protocol):
    def __call__(self, size: int, boxes: int, symbols: str) -> View[Room]: ...


ROOM_VIEWS: dict[str, _MakesView] = {
    "grid": GridView,
    "coordinates": CoordinatesView,
    "grid_coordinates": GridCoordinatesView,
}
