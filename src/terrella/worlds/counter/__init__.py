"""Counter: bring a counter to its goal. The smallest world, used by tests and the hello world."""

from dataclasses import dataclass, replace

import numpy as np

from terrella.core.errors import ConfigError
from terrella.core.types import Outcome
from terrella.core.world import StateWorld
from terrella.verify.state import StateDiff


@dataclass(frozen=True)
class Count:
    """The current value of the counter, and its goal."""

    value: int
    goal: int


class Counter(StateWorld[Count]):
    """Press up or down until the counter shows the goal."""

    @dataclass(frozen=True, kw_only=True)
    class Config(StateWorld.Config):
        """Goals are below `goals`; the value starts at most `away` steps from its goal."""

        goals: int = 100
        away: int = 8

        def __post_init__(self) -> None:
            """Refuse settings with which there is nothing to draw."""
            super().__post_init__()
            for name in ("goals", "away"):
                if getattr(self, name) < 1:
                    raise ConfigError(name, f"must be at least 1, not {getattr(self, name)}")

    config: Config
    rules = "Bring the value to the goal. Each action changes the value by one."
    state_type = Count
    verifier = StateDiff.Config().build()

    def draw(self, rng: np.random.Generator) -> Count:
        goal = int(rng.integers(self.config.goals))
        away = int(rng.integers(1, self.config.away + 1))
        return Count(goal + away * int(rng.choice((-1, 1))), goal)

    def legal(self, state: Count) -> tuple[str, ...]:
        return ("up", "down")

    def outcomes(self, state: Count, action: str) -> list[Outcome]:
        """Change the value by one; reaching the goal ends the episode."""
        after = replace(state, value=state.value + (1 if action == "up" else -1))
        won = after.value == after.goal
        return [Outcome(state=after, reward=float(won), terminated=won, success=won)]
