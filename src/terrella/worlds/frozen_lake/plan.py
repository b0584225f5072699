"""The optimal policy of one lake, by dynamic programming over the steps left.

The core's solver gives the same values, but it caches every map it has seen. This one is faster and
keeps only recent maps, which matters when the expert plays many thousands of them.
    plan_for(lake.tiles, success_rate=1.0).best_action(lake.player, steps_left=10)
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

from terrella.worlds.frozen_lake.maps import ACTIONS, GOAL, ICE, landings

TOLERANCE = 1e-12
"""Values that differ by less are equal: they sum the same probabilities in another order."""


class LakePlan:
    """Success probability from every cell of one map, for 0, 1, 2... steps left.

    Longer horizons are computed on demand.
    """

    def __init__(self, tiles: str, success_rate: float) -> None:
        self.tiles = tiles
        self.landings = landings(isqrt(len(tiles)), success_rate)
        # With no steps left, only a player on the goal has succeeded.
        self.values = [[float(tile == GOAL) for tile in tiles]]

    def value(self, cell: int, steps_left: int) -> float:
        """The probability that the best policy succeeds from this cell."""
        while len(self.values) <= steps_left:
            self._extend_horizon()
        return self.values[steps_left][cell]

    def _extend_horizon(self) -> None:
        later = self.values[-1]
        values = later.copy()
        for cell, tile in enumerate(self.tiles):
            if tile == ICE:
                values[cell] = max(self._action_values(cell, later))
        self.values.append(values)

    def best_action(self, cell: int, steps_left: int) -> str:
        """The action of highest value, and among those the one that wins soonest.

        With too few steps left to reach the goal it still walks towards it, so that an expert
        demonstration never gives up.
        """
        target = self.value(cell, steps_left) - TOLERANCE
        for budget in range(1, steps_left + len(self.tiles)):
            value = self.value(cell, budget)
            if value > 0.0 and value >= target:
                action_values = self._action_values(cell, self.values[budget - 1])
                return ACTIONS[action_values.index(max(action_values))]
        return ACTIONS[0]  # the player is in a hole: no action reaches the goal

    def _action_values(self, cell: int, later: list[float]) -> list[float]:
        return [
            sum(probability * later[target] for target, probability in landing)
            for landing in self.landings[cell]
        ]


@lru_cache(maxsize=1024)
def plan_for(tiles: str, success_rate: float) -> LakePlan:
    """The plan of a map; the most recent thousand are cached."""
    return LakePlan(tiles, success_rate)
