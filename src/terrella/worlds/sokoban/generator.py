"""Generate rooms by reverse play.

Start with every box on a target, pull the boxes away, then let the player walk off. Played forwards
the pulls are pushes, so each room can be solved in no more steps than were taken backwards. All
randomness comes from the generator that is passed in.
    room = draw_room(np.random.default_rng(0), size=6, boxes=1, longest=10)
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from terrella.core.errors import WorldError
from terrella.worlds.sokoban.room import FLOOR, TARGET, WALL, Room, steps

MAX_TRIES = 2000
FLOOR_SHARE = (0.5, 0.9)
"""Minimum and maximum fraction of the cells inside the border that become floor.

Below it rooms are corridors, above it they are empty halls.
"""


def draw_room(rng: np.random.Generator, *, size: int, boxes: int, longest: int) -> Room:
    """Draw a room whose boxes all start off target, solvable in at most `longest` steps."""
    for _ in range(MAX_TRIES):
        room = _play_backwards(rng, _carve_floor(rng, size), size, boxes, longest)
        if room is not None:
            return room
    raise WorldError(
        "sokoban",
        f"found no room in {MAX_TRIES} tries",
        "raise size, longest and max_steps, or lower boxes",
    )


def _carve_floor(rng: np.random.Generator, size: int) -> list[int]:
    """Grow a connected floor of random extent, one random neighbour at a time."""
    inside = [row * size + col for row in range(1, size - 1) for col in range(1, size - 1)]
    smallest, largest = (round(share * len(inside)) for share in FLOOR_SHARE)
    extent = int(rng.integers(smallest, largest + 1))
    frontier = [inside[int(rng.integers(len(inside)))]]
    seen = set(frontier)
    floor = []
    for number in rng.random(extent).tolist():
        cell = frontier.pop(int(number * len(frontier)))
        floor.append(cell)
        for step in steps(size):
            neighbour = cell + step
            row, col = divmod(neighbour, size)
            if neighbour not in seen and 0 < col < size - 1 and 0 < row < size - 1:
                seen.add(neighbour)
                frontier.append(neighbour)
    return floor


def _play_backwards(
    rng: np.random.Generator, floor: list[int], size: int, boxes: int, longest: int
) -> Room | None:
    """Make a room on this floor, or None when a box is still on a target after the pulls."""
    shuffled = rng.permutation(floor).tolist()
    targets = shuffled[:boxes]
    player = shuffled[boxes]
    # Steps reserved for a final walk: otherwise the player would always start next to a box.
    walk = int(rng.integers(longest // 2 + 1))
    pulled, player, left = _pull(rng, floor, size, sorted(targets), player, longest - walk)
    if any(box in targets for box in pulled):
        return None
    starts = list(distances(set(floor).difference(pulled), player, size, farthest=walk + left))
    layout = [WALL] * (size * size)
    for cell in floor:
        layout[cell] = FLOOR
    for cell in targets:
        layout[cell] = TARGET
    return Room("".join(layout), tuple(pulled), starts[int(rng.integers(len(starts)))])


def _pull(
    rng: np.random.Generator, floor: list[int], size: int, boxes: list[int], player: int, left: int
) -> tuple[list[int], int, int]:
    """Pull random boxes until `left` steps are spent.

    No arrangement of boxes occurs twice, so that no pull undoes an earlier one.

    Returns:
        The boxes, the player and the number of steps left.
    """
    seen = {tuple(boxes)}
    while left > 0:
        free = set(floor).difference(boxes)
        reachable = distances(free, player, size, farthest=left - 1)
        pulls = []
        for box in boxes:
            for step in steps(size):
                after = tuple(sorted(box + step if other == box else other for other in boxes))
                if box + step in reachable and box + 2 * step in free and after not in seen:
                    pulls.append((box + step, step, after))
        if not pulls:
            break
        origin, step, arrangement = pulls[int(rng.integers(len(pulls)))]
        left -= reachable[origin] + 1
        boxes = list(arrangement)
        player = origin + step
        seen.add(arrangement)
    return boxes, player, left


def distances(free: Collection[int], start: int, size: int, farthest: int) -> dict[int, int]:
    """Walking distances from `start` to all cells within `farthest` steps, nearest first."""
    reached = {start: 0}
    queue = [start]
    for cell in queue:
        distance = reached[cell] + 1
        if distance > farthest:
            break
        for step in steps(size):
            neighbour = cell + step
            if neighbour in free and neighbour not in reached:
                reached[neighbour] = distance
                queue.append(neighbour)
    return reached
