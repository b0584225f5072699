"""An existing Gymnasium env as a world.

class Taxi(GymWorld):
    env_id, action_names = "Taxi-v4", ("South", "North", "East", "West", "Pickup", "Dropoff")
    verifier = Exact.Config().build()
    def show(self, native): return State.of([int(n) for n in self.env.unwrapped.decode(native)])
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np

from terrella.core.config import Local
from terrella.core.errors import ConfigError
from terrella.core.instances import plain
from terrella.core.seeds import NOISE_STREAM, stream
from terrella.core.spaces import Names, Observations
from terrella.core.types import Observation
from terrella.core.world import Step, World


class GymWorld(World):
    """Name the actions, write `show`, set a verifier."""

    env_id: ClassVar[str]
    action_names: ClassVar[tuple[str, ...]]
    view_names = ("native",)

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """Config of a wrapped env: `options` go to `gymnasium.make`."""

        view: str = "native"
        options: Local[Mapping[str, Any]] = field(default_factory=dict[str, Any])

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # No time limit of the env's own: `max_steps` truncates the episode.
        try:
            self.env = gymnasium.make(self.env_id, **{"max_episode_steps": -1, **config.options})
        except gymnasium.error.Error as error:
            remedy = (
                "set env_id to one that gymnasium.make takes; import the module that registers it"
            )
            raise ConfigError(f"{self.name}.env_id", str(error), remedy) from error
        self.action_space = Names(self.action_names)
        self._native: Any = self.env.reset(seed=0)[0]
        example = self.show(self._native)
        self.observation_space = Observations(example.kind, example)
        self._taken: list[str] = []

    @abstractmethod
    def show(self, native: Any) -> Observation:
        """The env's observation as a record."""

    def succeeded(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
        """Whether the last step was a success; a positive last reward unless overridden."""
        return terminated and reward > 0

    def actions(self) -> tuple[str, ...]:
        """Names of the env's discrete actions."""
        return self.action_names

    def _start(self, rng: np.random.Generator) -> Any:
        self._native, _ = self.env.reset(seed=int(rng.integers(2**31)))
        # From here the env's generator drives its noise, so it gets a stream apart from the
        # instance.
        self.env.unwrapped.np_random = stream(NOISE_STREAM, self.seed, self.noise_seed)
        self._taken = []
        return plain(self.show(self._native))

    def _observe(self) -> Observation:
        return self.show(self._native)

    def _act(self, action: str) -> Step:
        self._taken.append(action)
        if action not in self.action_names:
            return Step(0.0, False, False, valid=False, effective=False)
        before = self._observe()
        native, reward, terminated, truncated, info = self.env.step(self.action_names.index(action))
        self._native, reward = native, float(reward)
        success = self.succeeded(reward, terminated, info)
        return Step(
            reward, bool(terminated), success, True, self._observe() != before, bool(truncated)
        )

    def fork(self) -> Self:
        """A new env that repeats the same seed and the same actions."""
        self._require_reset()
        twin = type(self)(self.config)
        twin.reset(seed=self.seed, options={"split": self.split, "noise_seed": self.noise_seed})
        for action in self._taken:
            twin.step(action)
        return twin
