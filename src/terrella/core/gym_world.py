"""An existing Gymnasium env as a world; `terrella wrap ENV` writes such a class.

Envs with few initial states have too few instances for a split. `walk` takes random actions before
an episode begins; `split_by="path"` tells instances apart by these actions, too.
    class Pole(GymWorld):
        env_id, action_names = "CartPole-v1", ("left", "right")
        verifier = StateDiff.Config(tolerance=0.001).build()
        def show(self, native): return State.of(rounded(native, digits=3))
        def succeeded(self, reward, terminated, info):
            return not terminated and self.played >= self.config.max_steps
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

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
    """Name the actions, write `show` and `succeeded`, set a verifier."""

    env_id: ClassVar[str]
    action_names: ClassVar[tuple[str, ...]]
    view_names = ("native",)
    fixed_actions = True
    invalid_reward: ClassVar[float] = 0.0
    """Reward of text that is no action. It must not be above that of a wasted legal one."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """Config of a wrapped env: `options` go to `gymnasium.make`."""

        view: str = "native"
        options: Local[Mapping[str, Any]] = field(default_factory=dict[str, Any])
        walk: int = 0
        """Most random actions between the env's reset and the start of an episode."""
        split_by: Literal["start", "path"] = "start"
        """What tells instances apart.

        start: the first observation, so held-out episodes begin in states of their own. path: also
        the actions of the walk, for envs with few states; held-out states may be in the data.
        """

    config: Config
    few_instances = (
        "the env draws few initial states: set walk=8, random actions before an episode begins; if "
        "that is not enough, also split_by=path (docs/your_env.md)"
    )

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

    @abstractmethod
    def succeeded(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
        """Whether the last step was a success, which Gymnasium's envs do not say.

        terminated and reward > 0                  the goal alone is paid (FrozenLake)
        terminated                                 steps cost, and the end is the goal (MountainCar)
        not terminated and self.played >= self.config.max_steps      the goal is to last (CartPole)
        bool(info.get("is_success"))               the env says it (Gymnasium-Robotics)
        False                                      there is no success, only a return (Pendulum)
        """

    @property
    def played(self) -> int:
        """Steps that the env itself has taken in this episode; text beside the actions is none."""
        return sum(action in self.action_names for action in self._taken)

    def native_action(self, action: str) -> Any:
        """The env's own action of this name; its place in `action_names` unless overridden."""
        return self.action_names.index(action)

    def actions(self) -> tuple[str, ...]:
        """Names of the env's actions."""
        return self.action_names

    @property
    def caveat(self) -> str:
        if self.config.split_by == "start":
            return ""
        return (
            "weaker: instances differ by the path to their start (split_by=path), so states of "
            "held-out episodes may be in the data; it holds for new episodes, not for new states"
        )

    def _start(self, rng: np.random.Generator) -> Any:
        seed = int(rng.integers(2**31))
        self._native, _ = self.env.reset(seed=seed)
        first = plain(self.show(self._native))
        path = self._walk(seed, rng) if self.config.walk else []
        # From here the env's generator drives its noise, so it gets a stream apart from the
        # instance.
        self.env.unwrapped.np_random = stream(NOISE_STREAM, self.seed, self.noise_seed)
        self._taken = []
        start = plain(self.show(self._native))
        return start if self.config.split_by == "start" else [first, path, start]

    def _walk(self, seed: int, rng: np.random.Generator) -> list[str]:
        """Take random actions; a walk that ends the episode is taken back."""
        chosen = rng.integers(len(self.action_names), size=int(rng.integers(self.config.walk + 1)))
        path = [self.action_names[index] for index in chosen]
        for action in path:
            self._native, _, terminated, truncated, _ = self.env.step(self.native_action(action))
            if terminated or truncated:
                self._native, _ = self.env.reset(seed=seed)
                return []
        return path

    def _observe(self) -> Observation:
        return self.show(self._native)

    def _act(self, action: str) -> Step:
        self._taken.append(action)
        if action not in self.action_names:
            return Step(self.invalid_reward, False, False, valid=False, effective=False)
        before = self._observe()
        native, reward, terminated, truncated, info = self.env.step(self.native_action(action))
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

    @property
    def steps_to_fork(self) -> int:
        return self.played

    def close(self) -> None:
        """Close the wrapped env."""
        self.env.close()


def rounded(native: Any, *, digits: int) -> Any:
    """An observation of numbers as plain JSON values, floats with so many digits."""
    if isinstance(native, Mapping):
        return {str(key): rounded(value, digits=digits) for key, value in native.items()}
    if isinstance(native, tuple | list):
        return [rounded(value, digits=digits) for value in native]
    if isinstance(native, np.ndarray):
        return [rounded(value, digits=digits) for value in native.tolist()]
    if isinstance(native, float | np.floating):
        # Adding 0.0 turns -0.0 into 0.0: the two look different and mean the same.
        return round(float(native), digits) + 0.0
    return native.item() if isinstance(native, np.generic) else native
