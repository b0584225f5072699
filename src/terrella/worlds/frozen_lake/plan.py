"""The optimal policy of one lake: success probabilities by steps left, computed once per map.

The core's solver would do, but it keeps every map it has seen; this keeps a few and is faster, which matters when
the expert plays many thousands of maps.
    plan_for(lake.tiles, success_rate=1.0).best_action(lake.player, steps_left=10)
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

from terrella.worlds.frozen_lake.maps import ACTIONS, GOAL, ICE, landings

TOLERANCE = 1e-12
"""Values that differ by less are equal: sums of the same chances in another order."""


class Plan:
    """Values of all cells of one map for 0, 1, 2... steps left; longer horizons are added when asked for."""

    def __init__(self, tiles: str, success_rate: float) -> None:
        """Start with no steps left: only who stands on the goal has succeeded."""
        self.tiles = tiles
        self.landings = landings(isqrt(len(tiles)), success_rate)
        self.values = [[float(tile == GOAL) for tile in tiles]]

    def value(self, cell: int, steps_left: int) -> float:
        """The probability that the best policy succeeds from here."""
        while len(self.values) <= steps_left:
            later = self.values[-1]
            self.values.append(
                [
                    max(self._action_values(here, later)) if tile == ICE else later[here]
                    for here, tile in enumerate(self.tiles)
                ]
            )
        return self.values[steps_left][cell]

    def best_action(self, cell: int, steps_left: int) -> str:
        """An action of highest value, and among those the one that wins soonest.

        With too few steps left to reach the goal it still walks towards it: a teacher should not give up.
        """
        wanted = self.value(cell, steps_left) - TOLERANCE
        for budget in range(1, steps_left + len(self.tiles)):
            reached = self.value(cell, budget)
            if reached > 0.0 and reached >= wanted:
                chances = self._action_values(cell, self.values[budget - 1])
                return ACTIONS[chances.index(max(chances))]
        return ACTIONS[0]  # no action ever reaches the goal (standing in a hole)

    def _action_values(self, cell: int, later: list[float]) -> list[float]:
        return [sum(chance * later[there] for there, chance in landing) for landing in self.landings[cell]]


@lru_cache(maxsize=1024)
def plan_for(tiles: str, success_rate: float) -> Plan:
    """The plan of a map; the last thousand are kept."""
    return Plan(tiles, success_rate)
