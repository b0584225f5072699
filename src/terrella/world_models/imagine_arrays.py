"""Worlds, real or imagined, with Box observations and Discrete actions.

Text becomes one-hot characters; frames stay pixels. `BatchedVectorEnv` is gymnasium's
`SyncVectorEnv`, except that imagined worlds share one batch of predictions per step.
    env = ArrayWrapper(imagine(config, folder))
    stable_baselines3.PPO("MlpPolicy", env).learn(10_000)
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
from terrella.world_models.imagine import prefetch_predictions

PROBED_RESETS = 64
"""Initial observations from which the width and the alphabet are determined."""


class ArrayWrapper(gymnasium.Wrapper[Any, Any, Observation, str]):
    """Presents a world with named actions as arrays and action numbers."""

    def __init__(self, world: World, *, width: int = 0, alphabet: str = "") -> None:
        """Wrap a world.

        Unless given, `width` (in characters) and `alphabet` are determined from the first instances
        and the instruction.
        """
        super().__init__(world)
        if not isinstance(world.action_space, Names):
            raise ConfigError(world.name, "takes free text: there are no actions to number")
        self.names = world.action_space.names
        self.action_space = Discrete(len(self.names))
        first = [world.reset(seed=seed)[0] for seed in range(PROBED_RESETS)]
        if isinstance(first[0], Frames):
            self.observation_space = Box(0, 255, first[0].shape, np.uint8)
            return
        texts = [show_text(observation) for observation in first]
        self.width = width or max(map(len, texts))
        characters = alphabet or sorted(set("".join(texts)) | set(world.instruction))
        self.alphabet = {character: column for column, character in enumerate(characters)}
        # The last column is for characters outside of the alphabet.
        self.observation_space = Box(0.0, 1.0, (self.width * (len(self.alphabet) + 1),), np.float32)

    def array(self, observation: Observation) -> NDArray[Any]:
        """Pixels as they are, or text as a flat one-hot vector."""
        if isinstance(observation, Frames):
            return observation.array
        text = show_text(observation)
        if len(text) > self.width:
            raise ConfigError(
                self.world.name,
                f"an observation has {len(text)} characters, more than {self.width}",
                "give a larger width",
            )
        one_hot = np.zeros((self.width, len(self.alphabet) + 1), np.float32)
        for position, character in enumerate(text):
            one_hot[position, self.alphabet.get(character, len(self.alphabet))] = 1.0
        return one_hot.reshape(-1)

    @property
    def world(self) -> World:
        """The wrapped world."""
        assert isinstance(self.env, World)
        return self.env

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self.array(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(self.names[int(action)])
        return self.array(observation), float(reward), terminated, truncated, info


class BatchedVectorEnv(SyncVectorEnv):
    """A vector of wrapped worlds that share a model, which is queried once per step."""

    def __init__(self, worlds: Iterable[ArrayWrapper]) -> None:
        super().__init__([lambda world=world: world for world in list(worlds)])  # type: ignore[misc]

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Predict all next steps in one batch, then step each world with its cached prediction."""
        running = [n for n, over in enumerate(self._autoreset_envs) if not over]
        wrappers = [env for env in self.envs if isinstance(env, ArrayWrapper)]
        prefetch_predictions(
            [wrappers[n].world for n in running],
            [wrappers[n].names[int(actions[n])] for n in running],
        )
        return super().step(actions)
