"""Worlds for programs that want arrays and numbers: any world, real or imagined, as Box observations, Discrete actions.

Text becomes one-hot characters, frames stay pixels. `TogetherEnv` is gymnasium's `SyncVectorEnv`, except that imagined
worlds ask their model together: one batch per step instead of one question at a time.
    env = Arrays(imagine(config, folder)); stable_baselines3.PPO("MlpPolicy", env).learn(10_000)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from terrella.core.errors import ConfigError
from terrella.core.spaces import Names
from terrella.core.types import Frames, Observation, show_text
from terrella.core.world import World
from terrella.use.policy_eval import ask_together

LOOKED_AT = 64
"""Beginnings that are looked at to learn which characters there are, and how many."""


class Arrays(gymnasium.Wrapper[Any, Any, Observation, str]):
    """A world with named actions, as numbers."""

    def __init__(self, world: World, *, width: int = 0, alphabet: str = "") -> None:
        """`width` (characters) and `alphabet` are read off the first instances and the instruction unless given."""
        super().__init__(world)
        if not isinstance(world.action_space, Names):
            raise ConfigError(world.name, "takes free text: there are no actions to number")
        self.names = world.action_space.names
        self.action_space = Discrete(len(self.names))
        first = [world.reset(seed=seed)[0] for seed in range(LOOKED_AT)]
        if isinstance(first[0], Frames):
            self.observation_space = Box(0, 255, first[0].shape, np.uint8)
            return
        texts = [show_text(observation) for observation in first]
        self.width = width or max(map(len, texts))
        self.alphabet = {c: n for n, c in enumerate(alphabet or sorted(set("".join(texts)) | set(world.instruction)))}
        # The last column is for characters that were never met.
        self.observation_space = Box(0.0, 1.0, (self.width * (len(self.alphabet) + 1),), np.float32)

    def array(self, observation: Observation) -> NDArray[Any]:
        """An observation in numbers."""
        if isinstance(observation, Frames):
            return observation.array
        text = show_text(observation)
        if len(text) > self.width:
            raise ConfigError(self.world.name, f"{len(text)} characters, more than {self.width}", "give a larger width")
        hot = np.zeros((self.width, len(self.alphabet) + 1), np.float32)
        for place, character in enumerate(text):
            hot[place, self.alphabet.get(character, len(self.alphabet))] = 1.0
        return hot.reshape(-1)

    @property
    def world(self) -> World:
        """What is wrapped."""
        assert isinstance(self.env, World)
        return self.env

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the world."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.array(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As the world; the action is its number."""
        observation, reward, terminated, truncated, info = self.env.step(self.names[int(action)])
        return self.array(observation), float(reward), terminated, truncated, info


class TogetherEnv(SyncVectorEnv):
    """A vector of `Arrays` over worlds that share a model, which is asked once per step."""

    def __init__(self, worlds: Iterable[Arrays]) -> None:
        """One environment each."""
        made = list(worlds)
        super().__init__([lambda world=world: world for world in made])  # type: ignore[misc]

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Ask together, then step one by one: each world finds its answer kept."""
        going = [n for n, over in enumerate(self._autoreset_envs) if not over]
        arrays = [env for env in self.envs if isinstance(env, Arrays)]
        ask_together([arrays[n].world for n in going], [arrays[n].names[int(actions[n])] for n in going])
        return super().step(actions)
