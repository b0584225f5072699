"""FrozenLake by Gymnasium's rules, on a new random map at each reset.

`outcomes` gives the exact distribution over where the player lands, slips included.
    world = FrozenLake.Config(size=6, success_rate=1 / 3).build()
    observation, info = world.reset(seed=0)
    world.step("Right")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.protocols import View
from terrella.core.types import Outcome
from terrella.core.world import StateWorld
from terrella.verify.text import LineGain
from terrella.worlds.frozen_lake.maps import ACTIONS, GOAL, ICE, Lake, draw_lake, landings
from terrella.worlds.frozen_lake.plan import plan_for
from terrella.worlds.frozen_lake.views import LAKE_VIEWS

ACTION_INDEX = {name: index for index, name in enumerate(ACTIONS)}


class FrozenLake(StateWorld[Lake]):
    """Reach the goal over firm or slippery ice; a hole ends the episode."""

    @dataclass(frozen=True, kw_only=True)
    class Config(StateWorld.Config):
        """Size of the board, slipperiness and density of holes."""

        view: str = "grid"
        size: int = 4
        """Rows and columns."""
        success_rate: float = 1.0
        """Probability of moving as intended; the two perpendicular directions share the rest.

        1 is firm ice.
        """
        hole_rate: float = 0.2
        """Probability that a cell is a hole, before maps without a path are drawn again."""

        def __post_init__(self) -> None:
            """Reject boards without room for start and goal, and rates that are out of range."""
            super().__post_init__()
            if self.size < 2:
                raise ConfigError(
                    "frozen_lake.size",
                    f"must be at least 2, not {self.size}",
                    "start and goal need different cells",
                )
            if not 0.0 <= self.success_rate <= 1.0:
                raise ConfigError(
                    "frozen_lake.success_rate", f"must lie in [0, 1], not {self.success_rate}"
                )
            if not 0.0 <= self.hole_rate < 1.0:
                raise ConfigError(
                    "frozen_lake.hole_rate", f"must lie in [0, 1), not {self.hole_rate}"
                )

    config: Config
    rules = (
        "You walk on a frozen lake. "
        "Reach the goal without falling into a hole: a hole ends the walk. "
        "Each action moves you by one cell; the edge of the board holds you back. "
        "Reaching the goal earns 1."
    )
    verifier = LineGain.Config().build()
    view_names = tuple(LAKE_VIEWS)
    presets: ClassVar[Mapping[str, Configurable.Config]] = {
        "4x4": Config(),
        "6x6": Config(size=6),
        "4x4_slip": Config(success_rate=1 / 3),
        "6x6_slip": Config(size=6, success_rate=1 / 3),
    }

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.landings = landings(config.size, config.success_rate)

    @property
    def instruction(self) -> str:
        """The rules, with a note on the slip probability when the ice is slippery."""
        instruction = super().instruction
        if self.config.success_rate == 1.0:
            return instruction
        rate = f"{self.config.success_rate:.3g}"
        return (
            f"{instruction}\nThe ice is slippery: you go where you want with probability {rate}, "
            "else to one side of it."
        )

    def draw(self, rng: np.random.Generator) -> Lake:
        return draw_lake(rng, self.config.size, self.config.hole_rate)

    def legal(self, state: Lake) -> tuple[str, ...]:
        return ACTIONS

    def outcomes(self, state: Lake, action: str) -> list[Outcome]:
        """The cells where the player may land.

        A hole or the goal ends the episode; actions after that change nothing.
        """
        tiles = state.tiles
        if tiles[state.player] != ICE:
            return [Outcome(state=state, terminated=True, success=tiles[state.player] == GOAL)]
        targets = self.landings[state.player][ACTION_INDEX[action]]
        return [_outcome(tiles, cell, probability) for cell, probability in targets]

    def make_view(self, name: str) -> View[Lake]:
        return LAKE_VIEWS[name](self.config.size)

    def expert(self, state: Lake, steps_left: int, rng: np.random.Generator) -> str:
        """The action most likely to reach the goal in time; exact, slips included."""
        return plan_for(state.tiles, self.config.success_rate).best_action(state.player, steps_left)


def _outcome(tiles: str, cell: int, probability: float) -> Outcome:
    won = tiles[cell] == GOAL
    return Outcome(
        state=Lake(tiles, cell),
        reward=float(won),
        terminated=tiles[cell] != ICE,
        success=won,
        probability=probability,
    )
