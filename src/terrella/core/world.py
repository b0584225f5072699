"""Worlds: `gymnasium.Env`s with views, a verifier and splits of their instances.

Most worlds derive from `StateWorld` and write three pure functions: `draw` an initial state, the
`legal` actions, and the `outcomes` of an action with their probabilities. Stepping, noise, splits,
exact truth and forking follow from these. An existing Gymnasium env plugs in through `GymWorld`
(`core/gym_world.py`).
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
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

import gymnasium
import numpy as np

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError, WorldError
from terrella.core.instances import instance_id, split_of
from terrella.core.protocols import Verifier, View
from terrella.core.seeds import INSTANCE_STREAM, NOISE_STREAM, stream
from terrella.core.solve import Solver
from terrella.core.spaces import Names, Observations
from terrella.core.types import Observation, Outcome, Split, Transition, Verdict
from terrella.core.views import RecordView
from terrella.core.world_settings import WorldSettings

S = TypeVar("S", bound=Hashable)

MAX_DRAWS = 2000
"""Attempts to draw an instance of a split; each split has at least a tenth of all instances."""
MAX_ACTION_LENGTH = 4096


class Step(NamedTuple):
    """The result of one step, as `World._act` reports it."""

    reward: float
    terminated: bool
    success: bool
    valid: bool
    effective: bool
    truncated: bool = False


class World(Configurable, gymnasium.Env[Observation, str], ABC):
    """Base of all worlds. Subclass `StateWorld` or `GymWorld` instead of this."""

    @dataclass(frozen=True, kw_only=True)
    class Config(WorldSettings):
        """Settings of every world (`core/world_settings.py`)."""

        owner: ClassVar[type[World]]

        @property
        def real(self) -> World.Config:
            """Where agents are measured: this world, or the real one behind an imagined world."""
            return self

    name: ClassVar[str] = ""
    """Name on the command line; derived from the class name if empty."""
    rules: ClassVar[str] = ""
    """The rules, as a model is told them."""
    presets: ClassVar[Mapping[str, Configurable.Config]] = {}
    """Named configs: `sokoban:two_box` builds `presets["two_box"]`."""
    view_names: ClassVar[tuple[str, ...]] = ("state",)
    few_instances: ClassVar[str] = "give the world more instances"
    """What to do when a split has none."""
    fixed_actions: ClassVar[bool] = False
    """Whether `actions` lists the same names in every state, and no other action is legal."""
    verifier: Verifier
    config: Config

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the class its command-line name."""
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def preset(cls, name: str) -> Configurable.Config | None:
        """The config that `sokoban:two_box` names. Override it where names follow a rule."""
        return cls.presets.get(name)

    def __init__(self, config: Config) -> None:
        """An instance is drawn by `reset`, not here."""
        super().__init__(config)
        if config.view not in self.view_names:
            raise ConfigError(
                f"{self.name}.view",
                f"no view {config.view!r}",
                f"views: {', '.join(self.view_names)}",
            )
        self.seed = self.noise_seed = self.steps = 0
        self.split, self.instance, self._over = config.split, "", True
        self.written = ""

    # --- hooks ------------------------------------------------------------------------------------

    @abstractmethod
    def _start(self, rng: np.random.Generator) -> Any:
        """Draw an instance and return its canonical key (plain values)."""

    @abstractmethod
    def _observe(self) -> Observation:
        """The current observation."""

    @abstractmethod
    def _act(self, action: str) -> Step:
        """Carry out one action, drawing dynamics noise from `self.noise` only."""

    @abstractmethod
    def actions(self) -> tuple[str, ...]:
        """Legal action names now; empty when the world takes free text."""

    def vocabulary(self) -> tuple[str, ...]:
        """Strings that get a token of their own in a vocabulary made for this world."""
        return self.actions()

    @property
    def state(self) -> Any:
        """The exact state, for teachers and checks; None if the world has none."""
        return None

    @property
    def instruction(self) -> str:
        """What a model is told once: the rules, the meaning of symbols, the actions."""
        names = self.actions()
        return self.rules + (f"\nActions: {', '.join(names)}." if names else "")

    def expert(self, state: Any, steps_left: int, rng: np.random.Generator) -> str:
        """An optimal action, or the best known one; a world without an expert raises."""
        raise WorldError(self.name, "has no expert", "write `expert`, or use another policy")

    @property
    def caveat(self) -> str:
        """What a certificate of this world does not cover; usually nothing."""
        return ""

    @property
    def has_expert(self) -> bool:
        """Whether the world has an expert; a wrapped env often has none."""
        return type(self).expert is not World.expert

    def _take(self, written: str) -> Any:
        """Begin a task that was written for practice and return its canonical key.

        The text is untrusted. See `core/written_tasks.py`.
        """
        raise WorldError(self.name, "takes no written tasks", "practise its own instances")

    def proposals(self, state: Any) -> Sequence[str]:
        """The actions that the uniform random policy chooses from."""
        return self.actions()

    def outcome(self, transitions: Sequence[Transition]) -> Verdict:
        """The verdict on an episode: success, unless overridden for partial credit."""
        return Verdict.of(float(bool(transitions) and bool(transitions[-1].info.get("success"))))

    # --- gymnasium --------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode. Options: `split` of the instance, `noise_seed` of the dynamics.

        `written` is a task for practice in place of an instance (`core/written_tasks.py`).
        """
        super().reset(seed=seed)
        options = dict(options or {})
        split = options.pop("split", self.config.split)
        self.noise_seed = int(options.pop("noise_seed", 0))
        self.written = str(options.pop("written", ""))
        if options:
            known = "known: split, noise_seed, written"
            raise ConfigError(self.name, f"unknown reset options {sorted(options)}", known)
        if split not in list(Split):
            raise ConfigError(self.name, f"no split {split!r}", f"splits: {', '.join(Split)}")
        self.split = Split(split)
        if self.written and self.split is not Split.TRAIN:
            raise ConfigError(self.name, "written tasks are for practice", "use the split train")
        self.seed = int(self.np_random.integers(2**31)) if seed is None else seed
        if self.written:
            self.instance = instance_id(self._take(self.written))
        else:
            self._draw_instance()
        self.noise = stream(NOISE_STREAM, self.seed, self.noise_seed)
        self.steps, self._over = 0, False
        info = {
            "instance": self.instance,
            "split": self.split.value,
            "seed": self.seed,
            "noise_seed": self.noise_seed,
        }
        return self._observe(), info

    def _draw_instance(self) -> None:
        self.instance = self._drawn(self.seed, self.split)

    def _drawn(self, seed: int, split: Split) -> str:
        """The instance of a seed; `_start` was called for it last."""
        for attempt in range(MAX_DRAWS):
            instance = instance_id(self._start(stream(INSTANCE_STREAM, seed, attempt)))
            if split_of(instance) is split:
                return instance
        raise WorldError(self.name, f"no {split} instance in {MAX_DRAWS} draws", self.few_instances)

    def instance_of(self, seed: int, split: Split) -> str:
        """The instance of a seed. It takes a reset, unless the world can tell without one."""
        self.reset(seed=seed, options={"split": split})
        return self.instance

    def start_of(self, seed: int, split: Split) -> str:
        """The name of what the episode of a seed begins with.

        It is the instance, unless several instances begin alike: they are counted as one.
        """
        return self.instance_of(seed, split)

    def instances(self, split: Split) -> tuple[str, ...] | None:
        """All instances of a split, of a world that can list them; None for any other."""
        return None

    def leave(self) -> None:
        """End the episode and free any exclusive resource.

        See `Config.exclusive`. Most worlds have nothing to free.
        """

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Carry out an action. An unknown action changes nothing and is marked invalid."""
        if self._over:
            raise WorldError(self.name, "step after the end of the episode", "call reset first")
        done = self._act(action)
        self.steps += 1
        truncated = not done.terminated and (done.truncated or self.steps >= self.config.max_steps)
        self._over = done.terminated or truncated
        if self._over:
            self.leave()
        info = {"valid": done.valid, "effective": done.effective, "success": done.success}
        return self._observe(), done.reward, done.terminated, truncated, info

    async def prepare(self, action: str) -> None:
        """Wait for what `step` will need, so that worlds that step together share the work.

        Most worlds need nothing. An imagined one predicts here: the model answers all of them as
        one batch.
        """

    def fork(self) -> Self:
        """An independent copy of the world at this moment."""
        self._require_reset()
        twin = copy.copy(self)
        twin.noise, twin.np_random = copy.deepcopy(self.noise), copy.deepcopy(self.np_random)
        return twin

    @property
    def steps_to_fork(self) -> int:
        """Steps that `fork` takes in the copy: none, unless it replays the actions taken."""
        return 0

    def _require_reset(self) -> None:
        if not self.instance:
            raise WorldError(self.name, "has no episode to fork", "call reset first")

    def render(self) -> None:
        """Does nothing: `terrella play` shows the observation."""


class StateWorld(World, Generic[S]):
    """A world whose state is a frozen, hashable value: write `draw`, `legal` and `outcomes`."""

    state_type: ClassVar[type[Any] | None] = None
    """The state's frozen dataclass, which the default `state` view reads back from JSON."""
    invalid_reward: ClassVar[float] = 0.0
    """Reward of an illegal action. It must not be above that of a wasted legal one."""

    def __init__(self, config: World.Config) -> None:
        super().__init__(config)
        self.view = self.make_view(config.view)
        self._state: S | None = None
        # One draw with a fixed seed gives the kind of observation and the action names.
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
        """All action names of the world (the action space); the legal ones unless overridden."""
        return self.legal(state)

    def key(self, state: S) -> Any:
        """The identity of an instance; the initial state itself unless overridden."""
        return state

    def make_view(self, name: str) -> View[S]:
        """The view of that name. The default `state` view needs `state_type`."""
        if self.state_type is None:
            raise WorldError(
                self.name, "has neither `state_type` nor `make_view`", "set one of them"
            )
        return cast("View[S]", RecordView(self.state_type))

    @property
    def state(self) -> S:
        if self._state is None:
            raise WorldError(self.name, "has no state yet", "call reset first")
        return self._state

    @property
    def instruction(self) -> str:
        """Rules, the legend of the view in use, and the actions."""
        names = self.actions()
        parts = [
            self.rules.strip(),
            self.view.legend.strip(),
            f"Actions: {', '.join(names)}." if names else "",
        ]
        return "\n".join(part for part in parts if part)

    def actions(self) -> tuple[str, ...]:
        """Legal action names now."""
        return self.legal(self.state)

    def vocabulary(self) -> tuple[str, ...]:
        """All action names, and the texts that the view repeats (its `vocabulary`, if it has one).

        Those that are legal now are not enough: other instances have others.
        """
        return (*self.all_actions(self.state), *getattr(self.view, "vocabulary", ()))

    @functools.cached_property
    def solver(self) -> Solver:
        """Exact values of this world, if its state space is small enough."""
        return Solver(cast(Any, self))

    def expert(self, state: S, steps_left: int, rng: np.random.Generator) -> str:
        """The optimal action by exact search; override it where there is a faster way."""
        return self.solver.best_action(state, steps_left)

    def proposals(self, state: S) -> Sequence[str]:
        """The legal actions; free-text worlds override this for the random policy."""
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
        return Step(
            chosen.reward,
            chosen.terminated,
            chosen.success,
            not legal or action in legal,
            effective,
        )


def _choose(results: Sequence[Outcome], rng: np.random.Generator) -> int:
    cumulative = list(itertools.accumulate(result.probability for result in results))
    return min(bisect.bisect_right(cumulative, rng.random()), len(results) - 1)
