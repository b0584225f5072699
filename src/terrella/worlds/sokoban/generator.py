"""Rooms by reverse play: begin with every box on a target, pull the boxes away, then let the player walk off.

Played forwards again, the pulls are pushes: each room can be solved, in no more steps than were taken backwards.
All randomness comes from the generator that is passed in; no global generator, no `hash`.
    room = draw_room(np.random.default_rng(0), size=6, boxes=1, longest=10)
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from terrella.core.errors import WorldError
from terrella.worlds.sokoban.room import FLOOR, TARGET, WALL, Room, steps

MAX_TRIES = 2000
FLOOR_SHARE = (0.5, 0.9)
"""Least and greatest share of the cells inside the border that become floor: less is a corridor, more is a hall."""


def draw_room(rng: np.random.Generator, *, size: int, boxes: int, longest: int) -> Room:
    """A room whose boxes all start off target and that can be solved in `longest` steps."""
    for _ in range(MAX_TRIES):
        room = _play_backwards(rng, _carve(rng, size), size, boxes, longest)
        if room is not None:
            return room
    raise WorldError("sokoban", f"no room in {MAX_TRIES} tries", "raise size, longest and max_steps, or lower boxes")


def _carve(rng: np.random.Generator, size: int) -> list[int]:
    """Cells of a connected floor of random extent, grown one random neighbour at a time."""
    inside = [row * size + col for row in range(1, size - 1) for col in range(1, size - 1)]
    least, most = (round(share * len(inside)) for share in FLOOR_SHARE)
    wanted = int(rng.integers(least, most + 1))
    edge = [inside[int(rng.integers(len(inside)))]]
    met, floor = set(edge), []
    for number in rng.random(wanted).tolist():
        cell = edge.pop(int(number * len(edge)))
        floor.append(cell)
        for step in steps(size):
            beside = cell + step
            if beside not in met and 0 < beside % size < size - 1 and size <= beside < size * (size - 1):
                met.add(beside)
                edge.append(beside)
    return floor


def _play_backwards(rng: np.random.Generator, floor: list[int], size: int, boxes: int, longest: int) -> Room | None:
    """A room on this floor, or None when the pulls left a box on a target (or there was no pull at all)."""
    placed = rng.permutation(floor).tolist()
    targets, player = placed[:boxes], placed[boxes]
    walk = int(rng.integers(longest // 2 + 1))  # kept for the end, or the player would always start beside a box
    moved, player, left = _pull(rng, floor, size, sorted(targets), player, longest - walk)
    if any(box in targets for box in moved):
        return None
    near = list(distances(set(floor).difference(moved), player, size, farthest=walk + left))
    layout = [WALL] * (size * size)
    for cell in floor:
        layout[cell] = FLOOR
    for cell in targets:
        layout[cell] = TARGET
    return Room("".join(layout), tuple(moved), near[int(rng.integers(len(near)))])


def _pull(
    rng: np.random.Generator, floor: list[int], size: int, boxes: list[int], player: int, left: int
) -> tuple[list[int], int, int]:
    """Pull random boxes until `left` steps are spent; returns the boxes, the player and the steps not spent.

    No arrangement of boxes occurs twice, so that pulls are not undone by later ones.
    """
    seen = {tuple(boxes)}
    while left > 0:
        free = set(floor).difference(boxes)
        ways = distances(free, player, size, farthest=left - 1)
        pulls = []
        for box in boxes:
            for step in steps(size):
                after = tuple(sorted(box + step if other == box else other for other in boxes))
                if box + step in ways and box + 2 * step in free and after not in seen:
                    pulls.append((box + step, step, after))
        if not pulls:
            break
        stand, step, arrangement = pulls[int(rng.integers(len(pulls)))]
        left -= ways[stand] + 1
        boxes, player = list(arrangement), stand + step
        seen.add(arrangement)
    return boxes, player, left


def distances(free: Collection[int], start: int, size: int, farthest: int) -> dict[int, int]:
    """Steps from `start` to every cell that the player can walk to in `farthest` steps, nearest first."""
    ways, queue = {start: 0}, [start]
    for cell in queue:
        way = ways[cell] + 1
        if way > farthest:
            break
        for step in steps(size):
            beside = cell + step
            if beside in free and beside not in ways:
                ways[beside] = way
                queue.append(beside)
    return ways
