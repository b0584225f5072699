"""The room: its state, and what one step of the player does to it.

A room is square and closed by walls, so a step never leaves it. Cells are places in `layout`: row * size + column.
    after = moved(room, step=1)  # one cell to the right; the same room when a wall or a stuck box is in the way
    boxes_on_target(after)
"""

from __future__ import annotations

from dataclasses import dataclass

WALL, FLOOR, TARGET = "#", "_", "O"


@dataclass(frozen=True, slots=True)
class Room:
    """What stands where."""

    layout: str
    """What does not move, row by row without line ends: `#` wall, `_` floor, `O` target."""
    boxes: tuple[int, ...]
    """Cells of the boxes, ascending: boxes are alike, so one room has one spelling."""
    player: int


def steps(size: int) -> tuple[int, int, int, int]:
    """What up, down, left and right add to a cell."""
    return -size, size, -1, 1


def moved(room: Room, step: int) -> Room:
    """The room after a step: the player walks, or pushes a box into a free cell, or nothing happens."""
    layout, boxes, ahead = room.layout, room.boxes, room.player + step
    if layout[ahead] == WALL:
        return room
    if ahead not in boxes:
        return Room(layout, boxes, ahead)
    beyond = ahead + step
    if layout[beyond] == WALL or beyond in boxes:
        return room
    return Room(layout, tuple(sorted(beyond if box == ahead else box for box in boxes)), ahead)


def boxes_on_target(room: Room) -> int:
    """How many boxes stand where they should."""
    layout = room.layout
    return sum(layout[box] == TARGET for box in room.boxes)
