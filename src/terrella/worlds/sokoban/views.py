"""Views of a room: a grid of symbols, coordinates, or both.

`read` accepts exact renderings only: it renders the room it parsed again and compares the texts.
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
"""Meanings of the seven symbols, in the order of `Config.symbols`."""
TILES = (WALL, FLOOR, TARGET, TARGET, FLOOR, FLOOR, TARGET)
"""The layout tile under each symbol."""

CELL = re.compile(r"\(([0-9]{1,4}),([0-9]{1,4})\)")


@lru_cache(maxsize=4096)
def _empty_room(layout: str, size: int, symbols: str) -> str:
    """The room without boxes and player, which stays the same for a whole episode."""
    text = layout.translate(str.maketrans(WALL + FLOOR + TARGET, symbols[:3]))
    return "\n".join(text[start : start + size] for start in range(0, len(text), size))


def _is_closed(layout: str, size: int) -> bool:
    """Whether the border is all wall."""
    sides = layout[::size] + layout[size - 1 :: size]
    return not (layout[:size] + layout[-size:] + sides).strip(WALL)


class RoomGridView:
    """The room as rows of symbols."""

    def __init__(self, size: int, boxes: int, symbols: str) -> None:
        """`symbols` are seven characters in the order of `MEANINGS`."""
        self.size = size
        self.boxes = boxes
        self.symbols = symbols
        self.index = {symbol: index for index, symbol in enumerate(symbols)}
        meanings = ", ".join(
            f"{symbol} {meaning}" for symbol, meaning in zip(symbols, MEANINGS, strict=True)
        )
        self.legend = f"The room has {size} rows of {size} symbols: {meanings}."
        wall = symbols[0]
        self.vocabulary = (f"{wall * size}\n{wall}", f"{wall}\n{wall}")
        """The border, which every room repeats: worth its own tokens in a small vocabulary."""

    def show(self, state: Room) -> Text:
        layout, size, symbols = state.layout, self.size, self.symbols
        text = list(_empty_room(layout, size, symbols))
        for box in state.boxes:
            text[box + box // size] = symbols[3 if layout[box] == TARGET else 4]
        player = state.player
        text[player + player // size] = symbols[6 if layout[player] == TARGET else 5]
        return Text("".join(text))

    def read(self, observation: Observation) -> Room | None:
        """Parse the grid.

        None unless the size is right, there is one player, the numbers of boxes and targets are
        right and the border is closed.
        """
        size = self.size
        if not isinstance(observation, Text) or len(observation.text) != size * (size + 1) - 1:
            return None
        indices = [self.index.get(symbol, -1) for symbol in observation.text.replace("\n", "")]
        if -1 in indices or len(indices) != size * size:
            return None
        players = [cell for cell, index in enumerate(indices) if index in (5, 6)]
        boxes = tuple(cell for cell, index in enumerate(indices) if index in (3, 4))
        layout = "".join(TILES[index] for index in indices)
        if len(players) != 1 or not len(boxes) == layout.count(TARGET) == self.boxes:
            return None
        if not _is_closed(layout, size):
            return None
        room = Room(layout, boxes, players[0])
        return room if self.show(room) == observation else None


class RoomCoordinatesView:
    """The size, player, boxes, targets and inner walls, each cell as (row,column)."""

    def __init__(self, size: int, boxes: int, symbols: str) -> None:
        """`symbols` is not used: this view has none."""
        self.size = size
        self.boxes = boxes
        self.inside = [row * size + col for row in range(1, size - 1) for col in range(1, size - 1)]
        self.max_chars = 64 + len(f"({size},{size}) ") * (size * size + 2 * boxes)
        titles = (
            f"Size: {size}x{size}\nPlayer: ",
            "\nBoxes: ",
            "\nTargets: ",
            "\nInner walls: ",
            "none",
        )
        self.vocabulary = (*titles, *(self._cells([cell]) for cell in self.inside))
        """Texts that every rendering repeats: worth their own tokens in a small vocabulary."""
        self.legend = (
            f"The room has {size} rows and {size} columns. Cells are (row,column), "
            f"counted from (0,0) at the top left to ({size - 1},{size - 1}) at the bottom right. "
            f"Row 0, row {size - 1}, column 0 and column {size - 1} are all wall; "
            "inner walls are listed. All other cells are floor."
        )

    def show(self, state: Room) -> Text:
        layout, size = state.layout, self.size
        targets = (cell for cell in self.inside if layout[cell] == TARGET)
        walls = (cell for cell in self.inside if layout[cell] == WALL)
        return Text(
            f"Size: {size}x{size}\n"
            f"Player: {self._cells([state.player])}\n"
            f"Boxes: {self._cells(state.boxes)}\n"
            f"Targets: {self._cells(targets)}\n"
            f"Inner walls: {self._cells(walls)}"
        )

    def _cells(self, cells: Iterable[int]) -> str:
        return " ".join(f"({cell // self.size},{cell % self.size})" for cell in cells) or "none"

    def read(self, observation: Observation) -> Room | None:
        if not isinstance(observation, Text) or len(observation.text) > self.max_chars:
            return None
        lines = [self._read_cells(line) for line in observation.text.split("\n")]
        match lines:
            case [[], [player], list(boxes), list(targets), list(walls)]:
                room = self._build_room(player, boxes, targets, walls)
                return room if room is not None and self.show(room) == observation else None
        return None

    def _read_cells(self, line: str) -> list[int] | None:
        """The cells named in a line, or None when one lies outside the room or on its border."""
        last = self.size - 1
        positions = [(int(row), int(col)) for row, col in CELL.findall(line)]
        inside = all(0 < row < last and 0 < col < last for row, col in positions)
        return [row * self.size + col for row, col in positions] if inside else None

    def _build_room(
        self, player: int, boxes: list[int], targets: list[int], walls: list[int]
    ) -> Room | None:
        """Build the room, or None if the counts are wrong or two things cannot share a cell."""
        counts_fit = len(set(boxes)) == len(set(targets)) == self.boxes
        if not counts_fit or player in boxes or {player, *boxes, *targets} & set(walls):
            return None
        layout = [WALL] * (self.size * self.size)
        for cell in self.inside:
            layout[cell] = WALL if cell in walls else TARGET if cell in targets else FLOOR
        return Room("".join(layout), tuple(sorted(set(boxes))), player)


class RoomGridCoordinatesView:
    """The grid, followed by the coordinates."""

    def __init__(self, size: int, boxes: int, symbols: str) -> None:
        """`symbols` are seven characters in the order of `MEANINGS`."""
        self.grid = RoomGridView(size, boxes, symbols)
        self.coordinates = RoomCoordinatesView(size, boxes, symbols)
        self.legend = f"{self.grid.legend}\nBelow it the same in words. {self.coordinates.legend}"

    def show(self, state: Room) -> Text:
        return Text(f"{self.grid.show(state).text}\n{self.coordinates.show(state).text}")

    def read(self, observation: Observation) -> Room | None:
        """Parse the grid; None unless the coordinates describe the same room."""
        if not isinstance(observation, Text):
            return None
        size = self.grid.size
        room = self.grid.read(Text(observation.text[: size * (size + 1) - 1]))
        return room if room is not None and self.show(room) == observation else None


class _ViewFactory(Protocol):
    def __call__(self, size: int, boxes: int, symbols: str) -> View[Room]: ...


ROOM_VIEWS: dict[str, _ViewFactory] = {
    "grid": RoomGridView,
    "coordinates": RoomCoordinatesView,
    "grid_coordinates": RoomGridCoordinatesView,
}
