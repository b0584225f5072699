"""Your own Gymnasium env, from wrapping it to an agent that looks ahead in a model of it.

It takes one core and ten minutes, in the folder `examples`:

    terrella check elevator                   # is the env sound?
    terrella train-world-model elevator.elevator_model --out runs/elevator
    terrella certify runs/elevator elevator   # how far can the model be trusted?
    terrella plan runs/elevator elevator      # act in the real env by looking ahead in the model
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from terrella import GymWorld, LineGain, Text
from terrella.engines.configs import SftConfig
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Random

FLOORS, INSIDE, ARRIVED = 5, 5, 6


class Elevator(gymnasium.Env):
    """A plain Gymnasium env, without any Terrella code.

    Two people wait. Bring both to their floors.
    """

    observation_space = gymnasium.spaces.MultiDiscrete([FLOORS, 7, FLOORS, 7, FLOORS])
    action_space = gymnasium.spaces.Discrete(3)  # up, down, open the door

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.floor = int(self.np_random.integers(FLOORS))
        self.people = [
            [int(n) for n in self.np_random.choice(FLOORS, 2, replace=False)] for _ in range(2)
        ]
        return self._seen(), {}

    def step(self, action: int) -> Any:
        """Move up, move down, or open the door for everyone who gets in or out here."""
        reward = -0.02
        if action == 2:
            reward += sum(self._door(person) for person in self.people)
        else:
            self.floor = min(max(self.floor + (1 if action == 0 else -1), 0), FLOORS - 1)
        done = all(where == ARRIVED for where, _ in self.people)
        return self._seen(), round(reward, 2), done, False, {}

    def _door(self, person: list[int]) -> float:
        if person[0] == self.floor:
            person[0] = INSIDE
            return 0.2
        if person == [INSIDE, self.floor]:
            person[0] = ARRIVED
            return 0.4
        return 0.0

    def _seen(self) -> np.ndarray:
        return np.array([self.floor, *self.people[0], *self.people[1]])


gymnasium.register("Elevator-v0", entry_point=Elevator)


class ElevatorWorld(GymWorld):
    """The same env as a world: actions have names, and `show` returns what a model sees.

    What is shown decides what a small model can learn. Here the house is drawn, so that everything
    a door does happens on one line, and nothing has to be counted or compared across lines.
    """

    rules = (
        "E: the elevator. a3 waits and wants to go to floor 3, A3 is inside. "
        "Bring both where they want to go."
    )
    env_id, action_names = "Elevator-v0", ("up", "down", "open")
    verifier = LineGain.Config().build()
    invalid_reward = -0.02  # what a wasted step costs

    def show(self, native: np.ndarray) -> Text:
        """One line per floor, the top floor first."""
        floor, *people = (int(n) for n in native)
        lines = [[str(level)] + ["E"] * (level == floor) for level in range(FLOORS)]
        for name, where, wanted in zip("ab", people[::2], people[1::2], strict=True):
            if where == INSIDE:
                lines[floor].append(f"{name.upper()}{wanted}")
            elif where != ARRIVED:
                lines[where].append(f"{name}{wanted}")
        return Text("\n".join(" ".join(line) for line in reversed(lines)))

    def succeeded(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
        """The env ends an episode when both have arrived."""
        return terminated


def elevator_model() -> TrainWorldModel.Config:
    """A model of the elevator, trained on random play: nobody has to know how to play well.

    It takes seven minutes on one shared core.
    """
    fit = SftConfig(epochs=4, batch_size=32, learning_rate=2e-3, warmup_steps=50, pack_tokens=512)
    world = ElevatorWorld.Config(max_steps=20)
    return TrainWorldModel.Config(world=world, policy=Random.Config(), transitions=20_000, sft=fit)
