"""The lake: its state, the transition probabilities between cells, and random maps.

All randomness comes from the generator that is passed in. `draw_lake` is performance-critical:
every reset calls it.
    lake = draw_lake(np.random.default_rng(0), size=4, hole_rate=0.2)
    lake.tiles, lake.player
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from terrella.core.errors import WorldError

ICE, HOLE, GOAL = "_", "O", "G"
ACTIONS = ("Left", "Down", "Right", "Up")
"""Adjacent entries are perpendicular directions, so a slip is one entry before or after."""
MAX_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Lake:
    """A square map and the position of the player on it."""

    tiles: str
    """Row by row, without line breaks: `_` ice, `O` hole, `G` goal."""
    player: int
    """Index into `tiles`: row * size + column."""


@lru_cache(maxsize=64)
def neighbours(size: int) -> tuple[tuple[int, ...], ...]:
    """For each cell, where Left, Down, Right and Up lead; moves off the board stay in place."""
    last = size - 1
    return tuple(
        (
            row * size + max(col - 1, 0),
            min(row + 1, last) * size + col,
            row * size + min(col + 1, last),
            max(row - 1, 0) * size + col,
        )
        for row in range(size)
        for col in range(size)
    )


@lru_cache(maxsize=64)
def landings(
    size: int, success_rate: float
) -> tuple[tuple[tuple[tuple[int, float], ...], ...], ...]:
    """For each cell and action, the cells where the player may land, with probabilities."""
    return tuple(
        tuple(_landing(around, action, success_rate) for action in range(len(ACTIONS)))
        for around in neighbours(size)
    )


def _landing(
    around: tuple[int, ...], action: int, success_rate: float
) -> tuple[tuple[int, float], ...]:
    slip = (1.0 - success_rate) / 2.0
    probabilities: dict[int, float] = {}
    for turn, probability in ((0, success_rate), (-1, slip), (1, slip)):
        cell = around[(action + turn) % len(ACTIONS)]
        # At the edge two directions can lead to the same cell.
        probabilities[cell] = probabilities.get(cell, 0.0) + probability
    return tuple((cell, total) for cell, total in probabilities.items() if total > 0.0)


def draw_lake(rng: np.random.Generator, size: int, hole_rate: float) -> Lake:
    """Draw start, goal and holes, and draw all of them again until a path joins start and goal."""
    cells = size * size
    for _ in range(MAX_TRIES):
        first, second, *numbers = rng.random(cells + 2).tolist()
        start, goal = int(first * cells), int(second * (cells - 1))
        goal += goal >= start
        tiles = [HOLE if number < hole_rate else ICE for number in numbers]
        tiles[start], tiles[goal] = ICE, GOAL
        if _is_reachable(tiles, start, goal, neighbours(size)):
            return Lake("".join(tiles), start)
    raise WorldError(
        "frozen_lake", f"found no map with a path in {MAX_TRIES} tries", "lower hole_rate or size"
    )


def _is_reachable(
    tiles: list[str], start: int, goal: int, around: tuple[tuple[int, ...], ...]
) -> bool:
    reached = {start}
    frontier = [start]
    while frontier:
        for cell in around[frontier.pop()]:
            if cell == goal:
                return True
            if cell not in reached and tiles[cell] == ICE:
                reached.add(cell)
                frontier.append(cell)
    return False
