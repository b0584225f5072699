"""A world is the ground truth: a `gymnasium.Env` with a view, a verifier and a split of its instances.

Most worlds derive from `StateWorld` and write three pure functions: `draw` an initial state, the `legal`
actions, and the `outcomes` of an action with their probabilities. Stepping, noise, splits, exact truth and
forking follow from these. An existing Gymnasium env plugs in through `GymWorld`.
    world = FrozenLake.Config(size=6).build()
    observation, info = world.reset(seed=0, options={"split": "test", "noise_seed": 3})
    observation, reward, terminated, truncated, info = world.step("Right")
"""

from __future__ import annotations

import bisect
import copy
import functools
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

import gymnasium
import numpy as np

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError, WorldError
from terrella.core.instances import INSTANCE_STREAM, NOISE_STREAM, instance_id, plain, split_of, stream
from terrella.core.protocols import Verifier, View
from terrella.core.solve import Solver
from terrella.core.spaces import Names, Observations
from terrella.core.types import Observation, Outcome, Split, Transition, Verdict
from terrella.core.views import RecordView

S = TypeVar("S", bound=Hashable)

MAX_DRAWS = 2000
"""Tries to draw an instance of the wanted split; a split is a tenth at least, so this never ends by chance."""
MAX_ACTION_LENGTH = 4096


class Step(NamedTuple):
    """What `World._act` reports of one step."""

    reward: float
    terminated: bool
    success: bool
    valid: bool
    effective: bool
    truncated: bool = False


class World(Configurable, gymnasium.Env[Observation, str], ABC):
    """Ground truth behind Gymnasium's door. Subclass `StateWorld` or `GymWorld` rather than this."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """What every world can be asked."""

        max_steps: int = 10
        """The episode is truncated after this many actions."""
        split: Split = Split.TRAIN
        """Where instances come from unless `reset` says otherwise: never test by accident."""
        view: str = "state"
        """What a model is shown; the world's class lists its views."""

        def __post_init__(self) -> None:
            """Refuse an episode without steps."""
            if self.max_steps < 1:
                raise ConfigError("max_steps", f"must be at least 1, not {self.max_steps}")

    name: ClassVar[str] = ""
    """How the command line calls it; made from the class name when left empty."""
    rules: ClassVar[str] = ""
    """The rules in words, as a model is told them."""
    presets: ClassVar[Mapping[str, Configurable.Config]] = {}
    """Named configs: `sokoban:two_box` builds `presets["two_box"]`."""
    view_names: ClassVar[tuple[str, ...]] = ("state",)
    verifier: Verifier
    config: Config

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the class its command-line name."""
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, config: Config) -> None:
        """Check the view; an instance is drawn by `reset`."""
        super().__init__(config)
        if config.view not in self.view_names:
            raise ConfigError(f"{self.name}.view", f"no view {config.view!r}", f"views: {', '.join(self.view_names)}")
        self.seed = self.noise_seed = self.steps = 0
        self.split, self.instance, self._over = config.split, "", True

    # --- hooks --------------------------------------------------------------------------------------------

    @abstractmethod
    def _start(self, rng: np.random.Generator) -> Any:
        """Draw an instance and return its canonical key (plain values)."""

    @abstractmethod
    def _observe(self) -> Observation:
        """What a model sees now."""

    @abstractmethod
    def _act(self, action: str) -> Step:
        """Carry out one action, drawing dynamics noise from `self.noise` only."""

    @abstractmethod
    def actions(self) -> tuple[str, ...]:
        """Legal action names now; empty when the world takes free text."""

    def words(self) -> tuple[str, ...]:
        """What deserves a token of its own in a vocabulary made for this world: short texts are fast to train on."""
        return self.actions()

    @property
    def state(self) -> Any:
        """The exact state, for teachers and checks; None where there is none to give."""
        return None

    @property
    def instruction(self) -> str:
        """What a model is told once: the rules, what the symbols mean, what it can do."""
        names = self.actions()
        return self.rules + (f"\nActions: {', '.join(names)}." if names else "")

    def expert(self, state: Any, steps_left: int, rng: np.random.Generator) -> str:
        """An optimal (or the best known) action; worlds without one say so."""
        raise WorldError(self.name, "has no expert", "write `expert`, or use another policy")

    @property
    def has_expert(self) -> bool:
        """Whether `expert` was written: an env that was wrapped often knows nobody who plays it well."""
        return type(self).expert is not World.expert

    def proposals(self, state: Any) -> Sequence[str]:
        """What the uniform random policy chooses from."""
        return self.actions()

    def outcome(self, transitions: Sequence[Transition]) -> Verdict:
        """The verdict on an episode: did it succeed? Override for partial credit."""
        return Verdict.of(float(bool(transitions) and bool(transitions[-1].info.get("success"))))

    # --- gymnasium ----------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode. Options: `split` (where the instance comes from), `noise_seed` (dynamics noise)."""
        super().reset(seed=seed)
        options = dict(options or {})
        split, self.noise_seed = options.pop("split", self.config.split), int(options.pop("noise_seed", 0))
        if options:
            raise ConfigError(self.name, f"unknown reset options {sorted(options)}", "known: split, noise_seed")
        if split not in list(Split):
            raise ConfigError(self.name, f"no split {split!r}", f"splits: {', '.join(Split)}")
        self.split = Split(split)
        self.seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._draw_instance()
        self.noise = stream(NOISE_STREAM, self.seed, self.noise_seed)
        self.steps, self._over = 0, False
        info = {"instance": self.instance, "split": self.split.value, "seed": self.seed, "noise_seed": self.noise_seed}
        return self._observe(), info

    def _draw_instance(self) -> None:
        for attempt in range(MAX_DRAWS):
            self.instance = instance_id(self._start(stream(INSTANCE_STREAM, self.seed, attempt)))
            if split_of(self.instance) is self.split:
                return
        raise WorldError(self.name, f"no {self.split} instance in {MAX_DRAWS} draws", "give the world more instances")

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Carry out an action. An action that the world does not know changes nothing and is marked invalid."""
        if self._over:
            raise WorldError(self.name, "step after the end of the episode", "call reset first")
        done = self._act(action)
        self.steps += 1
        truncated = not done.terminated and (done.truncated or self.steps >= self.config.max_steps)
        self._over = done.terminated or truncated
        info = {"valid": done.valid, "effective": done.effective, "success": done.success}
        return self._observe(), done.reward, done.terminated, truncated, info

    def fork(self) -> Self:
        """An independent copy at this moment: step or reset it, and this one has not moved."""
        self._require_reset()
        twin = copy.copy(self)
        twin.noise, twin.np_random = copy.deepcopy(self.noise), copy.deepcopy(self.np_random)
        return twin

    def _require_reset(self) -> None:
        if not self.instance:
            raise WorldError(self.name, "has no episode to fork", "call reset first")

    def render(self) -> None:
        """Nothing to draw: the observation is the picture. `terrella play` shows it."""


class StateWorld(World, Generic[S]):
    """A world whose state is a frozen, hashable value. Write `draw`, `legal` and `outcomes`; all are pure."""

    state_type: ClassVar[type[Any] | None] = None
    """The state's frozen dataclass: gives the default `state` view its way back from JSON."""
    invalid_reward: ClassVar[float] = 0.0
    """What an illegal action costs; no less than a wasted legal one, or nonsense becomes the cheapest move."""

    def __init__(self, config: World.Config) -> None:
        """Build the view the config names."""
        super().__init__(config)
        self.view = self.make_view(config.view)
        self._state: S | None = None
        # One draw, by a fixed seed, tells the kind of observation and the names of the actions.
        example = self.draw(stream(INSTANCE_STREAM, 0))
        seen, names = self.view.show(example), self.all_actions(example)
        self.observation_space = Observations(seen.kind, seen)
        self.action_space = Names(names) if names else gymnasium.spaces.Text(MAX_ACTION_LENGTH)

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> S:
        """An initial state. All randomness comes from `rng`."""

    @abstractmethod
    def legal(self, state: S) -> tuple[str, ...]:
        """The action names that count in this state; empty for free text."""

    @abstractmethod
    def outcomes(self, state: S, action: str) -> Sequence[Outcome]:
        """All results of a legal action, with probabilities that sum to 1."""

    def all_actions(self, state: S) -> tuple[str, ...]:
        """Action names of the whole world (the Gymnasium action space); the legal ones unless overridden."""
        return self.legal(state)

    def key(self, state: S) -> Any:
        """What makes two initial states the same instance; the state itself unless overridden."""
        return state

    def make_view(self, name: str) -> View[S]:
        """The view of that name. The default `state` view needs `state_type`."""
        if self.state_type is None:
            raise WorldError(self.name, "has neither `state_type` nor `make_view`", "set one of them")
        return cast("View[S]", RecordView(self.state_type))

    @property
    def state(self) -> S:
        """The exact state."""
        if self._state is None:
            raise WorldError(self.name, "has no state yet", "call reset first")
        return self._state

    @property
    def instruction(self) -> str:
        """Rules, the legend of the view in use, and the actions."""
        names = self.actions()
        parts = [self.rules.strip(), self.view.legend.strip(), f"Actions: {', '.join(names)}." if names else ""]
        return "\n".join(part for part in parts if part)

    def actions(self) -> tuple[str, ...]:
        """Legal action names now."""
        return self.legal(self.state)

    def words(self) -> tuple[str, ...]:
        """Action names, and what the view repeats if it says so (`words`)."""
        return (*self.actions(), *getattr(self.view, "words", ()))

    @functools.cached_property
    def solver(self) -> Solver:
        """Exact values of this world, for as long as its state space allows."""
        return Solver(cast(Any, self))

    def expert(self, state: S, steps_left: int, rng: np.random.Generator) -> str:
        """The optimal action by exact search; override where the world has a faster way."""
        return self.solver.best_action(state, steps_left)

    def proposals(self, state: S) -> Sequence[str]:
        """The legal actions; free-text worlds override this to give the random policy something to say."""
        return self.legal(state)

    def truth(self, state: S, action: str) -> Sequence[Outcome]:
        """The exact distribution over results, illegal actions included (nothing happens)."""
        legal = self.legal(state)
        if legal and action not in legal:
            return (Outcome(state=state, reward=self.invalid_reward),)
        return self.outcomes(state, action)

    def _start(self, rng: np.random.Generator) -> Any:
        self._state = self.draw(rng)
        return self.key(self._state)

    def _observe(self) -> Observation:
        return self.view.show(self.state)

    def _act(self, action: str) -> Step:
        before, legal = self.state, self.actions()
        results = self.truth(before, action)
        chosen = results[0] if len(results) == 1 else results[_choose(results, self.noise)]
        self._state = chosen.state
        effective = chosen.state != before
        return Step(chosen.reward, chosen.terminated, chosen.success, not legal or action in legal, effective)


def _choose(results: Sequence[Outcome], rng: np.random.Generator) -> int:
    cumulative = list(itertools.accumulate(result.probability for result in results))
    return min(bisect.bisect_right(cumulative, rng.random()), len(results) - 1)


class GymWorld(World):
    """An existing Gymnasium env as a world: name the actions, write `show`, set a verifier.

    class Taxi(GymWorld):
        env_id, action_names = "Taxi-v4", ("South", "North", "East", "West", "Pickup", "Dropoff")
        verifier = Exact.Config().build()
        def show(self, native): return State.of([int(n) for n in self.env.unwrapped.decode(native)])
    """

    env_id: ClassVar[str]
    action_names: ClassVar[tuple[str, ...]]
    view_names = ("native",)

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """Config of a wrapped env: `options` go to `gymnasium.make`."""

        view: str = "native"
        options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    config: Config

    def __init__(self, config: Config) -> None:
        """Make the wrapped env."""
        super().__init__(config)
        # No time limit of its own: `max_steps` truncates, and what we truncate is not reported as an end of the world.
        try:
            self.env = gymnasium.make(self.env_id, **{"max_episode_steps": -1, **config.options})
        except gymnasium.error.Error as error:
            remedy = "set env_id to one that gymnasium.make takes; import the module that registers it"
            raise ConfigError(f"{self.name}.env_id", str(error), remedy) from error
        self.action_space = Names(self.action_names)
        self._native: Any = self.env.reset(seed=0)[0]
        example = self.show(self._native)
        self.observation_space = Observations(example.kind, example)
        self._taken: list[str] = []

    @abstractmethod
    def show(self, native: Any) -> Observation:
        """The env's own observation as a record."""

    def succeeded(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
        """Whether the step that ended the episode was a success; a positive last reward unless overridden."""
        return terminated and reward > 0

    def actions(self) -> tuple[str, ...]:
        """The names given to the env's discrete actions."""
        return self.action_names

    def _start(self, rng: np.random.Generator) -> Any:
        self._native, _ = self.env.reset(seed=int(rng.integers(2**31)))
        # The env's generator now drives its noise: it gets a stream of its own, apart from the instance.
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
        return Step(reward, bool(terminated), success, True, self._observe() != before, bool(truncated))

    def fork(self) -> Self:
        """A new env brought to the same moment by the same seed and the same actions."""
        self._require_reset()
        twin = type(self)(self.config)
        twin.reset(seed=self.seed, options={"split": self.split, "noise_seed": self.noise_seed})
        for action in self._taken:
            twin.step(action)
        return twin
