"""The state of a room, and the effect of one step of the player.

A room is square and enclosed by walls, so a step never leaves it. Cells are indices into `layout`:
row * size + column. A step is the number it adds to the player's cell.
    after = apply_step(room, step=1)  # one cell to the right
    boxes_on_target(after)
"""

from __future__ import annotations

from dataclasses import dataclass

WALL, FLOOR, TARGET = "#", "_", "O"


@dataclass(frozen=True, slots=True)
class Room:
    """Walls and targets, and the positions of the boxes and the player."""

    layout: str
    """The fixed parts, row by row without line breaks: `#` wall, `_` floor, `O` target."""
    boxes: tuple[int, ...]
    """Cells of the boxes in ascending order: boxes are alike, so that equal rooms compare equal."""
    player: int


def steps(size: int) -> tuple[int, int, int, int]:
    """The steps up, down, left and right."""
    return -size, size, -1, 1


def apply_step(room: Room, step: int) -> Room:
    """Return the room after a step: the player walks, or pushes a box into a free cell.

    Returns the same object when a wall or a stuck box is in the way.
    """
    layout, boxes = room.layout, room.boxes
    ahead = room.player + step
    if layout[ahead] == WALL:
        return room
    if ahead not in boxes:
        return Room(layout, boxes, ahead)
    beyond = ahead + step
    if layout[beyond] == WALL or beyond in boxes:
        return room
    return Room(layout, tuple(sorted(beyond if box == ahead else box for box in boxes)), ahead)


def boxes_on_target(room: Room) -> int:
    """Count the boxes that are on a target."""
    layout = room.layout
    return sum(layout[box] == TARGET for box in room.boxes)
