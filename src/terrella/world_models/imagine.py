"""A world model as a Gymnasium environment.

Any program that plays a `gymnasium.Env` can play in imagination. Episodes start in a state of the
real world and continue in predictions; `info` has the risk and the depth of each step and what the
certificate says about it. The same seed gives the same episode. A prediction that cannot be parsed,
or that shows no valid state, ends the episode.
    world = imagine(FrozenLake.Config(size=3), Path("runs/lake"))
    observation, info = world.reset(seed=0); world.step("Right")[-1]["risk"]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from terrella.core.bounds import check_least
from terrella.core.config import Local
from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import Policy
from terrella.core.types import Observation, Situation, Transition, Verdict
from terrella.core.world import StateWorld, Step, World
from terrella.trust.certificate import Trust
from terrella.world_models.certified import CertifiedModel, load_certified_model


class ImaginedWorld(World):
    """A world whose steps are predicted by a model.

    Use `imagine` to make one from the config of the real world.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The real world (for initial states, rules and actions) and the folder of its model."""

        world: World.Config
        folder: Local[Path] = Path()
        samples: int = 8

        def __post_init__(self) -> None:
            super().__post_init__()
            check_least(self, samples=1)

        @property
        def real(self) -> World.Config:
            """The real world, with the episode length and the split of the imagined one."""
            return self.world.real.replace(max_steps=self.max_steps, split=self.split)

    name: ClassVar[str] = "imagined"
    config: Config

    def __init__(self, config: Config, certified_model: CertifiedModel | None = None) -> None:
        """Unless `certified_model` is given, it is loaded from the folder on first use."""
        super().__init__(config)
        self.real: World = config.world.build()
        self._certified_model = certified_model
        self.verifier = self.real.verifier
        self.observation_space = self.real.observation_space
        self.action_space = self.real.action_space
        self.history: tuple[Transition, ...] = ()
        self.depth = 0
        """Imagined steps since the last state that is known to be real."""
        self.step_info: dict[str, Any] = {}

    @property
    def certified_model(self) -> CertifiedModel:
        """The model with its risk and certificate."""
        if self._certified_model is None:
            if self.config.folder == Path():
                raise ConfigError(
                    f"{self.name}.folder",
                    "no model is named, and a file may not name one",
                    "set world.folder to the folder of `train-world-model`",
                )
            self._certified_model = load_certified_model(
                self.config.folder, self.config.samples, self.played_world
            )
        return self._certified_model

    @property
    def played_world(self) -> World.Config:
        """The real world with the episode length of this one: what a certificate must be of."""
        return self.config.world.replace(max_steps=self.config.max_steps)

    # --- initial states: from the real world ------------------------------------------------------

    def _draw_instance(self) -> None:
        observation, _ = self.real.reset(
            seed=self.seed, options={"split": self.split, "noise_seed": self.noise_seed}
        )
        self.real.leave()  # what follows is imagined
        self.instance = self.real.instance
        self._observation = observation
        self._instruction = self.real.instruction
        self.history = ()
        self.depth = 0
        self.step_info = {"risk": 0.0, "depth": 0, "trust": Trust.TRUSTED.value}

    def _start(self, rng: np.random.Generator) -> Any:
        raise NotImplementedError("an imagined world starts in a state of the real world")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode in a real initial state; the options are those of the real world."""
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, **self.step_info}

    # --- steps: predicted -------------------------------------------------------------------------

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """As in any world; `info` also has `risk`, `depth` and `trust` (the verdict)."""
        before = self._observation
        observation, reward, terminated, truncated, info = super().step(action)
        info |= self.step_info
        transition = Transition(
            observation=before,
            action=action,
            next_observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )
        self.history = (*self.history, transition)
        return observation, reward, terminated, truncated, info

    def query(self, action: str) -> Query:
        """The query to the model for this action in the current situation."""
        situation = Situation(
            instruction=self._instruction,
            observation=self._observation,
            actions=self.actions(),
            history=self.history,
            steps_left=self.config.max_steps - self.steps,
        )
        return Query(situation, action)

    async def prepare(self, action: str) -> None:
        """Have the step predicted; `step` then finds it in the model's cache."""
        if self.certified_model.is_async and not self._is_illegal(action):
            await self.certified_model.predict_async([self.query(action)])

    def _act(self, action: str) -> Step:
        if self._is_illegal(action):  # the contract of all worlds; the model is not queried
            self.step_info = {"risk": 0.0, "depth": self.depth, "trust": Trust.TRUSTED.value}
            return Step(
                getattr(self.real, "invalid_reward", 0.0),
                False,
                False,
                valid=False,
                effective=False,
            )
        return self._imagine(action)

    def _is_illegal(self, action: str) -> bool:
        """Whether an action is illegal in the imagined state; False if only the model can tell."""
        if not isinstance(self.real, StateWorld) and not self.real.fixed_actions:
            return False
        legal = self.actions()
        return bool(legal) and action not in legal

    def _imagine(self, action: str) -> Step:
        ((distribution, risk),) = self.certified_model.assess([self.query(action)])
        verdict = self.certified_model.verdict(risk, self.depth + 1)
        return self._draw_step(distribution, risk, verdict)

    def _draw_step(self, distribution: PredictiveDistribution, risk: float, verdict: Trust) -> Step:
        """Draw the next observation from a predicted distribution."""
        self.depth += 1
        self.step_info = {"risk": risk, "depth": self.depth, "trust": verdict.value}
        prediction = distribution.draw(self.noise.random())
        if prediction is None or not self._possible(prediction.observation):
            self.step_info |= {"risk": 1.0, "unreadable": True}
            return Step(0.0, True, False, valid=True, effective=False)
        effective = prediction.observation != self._observation
        self._observation = prediction.observation
        return Step(
            prediction.reward,
            prediction.terminated,
            prediction.success,
            valid=True,
            effective=effective,
        )

    def _possible(self, observation: Observation) -> bool:
        """Whether this is an observation of some state; True if the world cannot tell."""
        return not isinstance(self.real, StateWorld) or self.real.view.read(observation) is not None

    # --- delegated to the real world, in the imagined state ---------------------------------------

    @property
    def state(self) -> Any:
        """The state that the current observation shows; None if it cannot be read back."""
        if not isinstance(self.real, StateWorld):
            return None
        return self.real.view.read(self._observation)

    def _observe(self) -> Observation:
        return self._observation

    def actions(self) -> tuple[str, ...]:
        """Legal actions in the imagined state; empty if they are unknown.

        The real world has not taken the imagined steps: what it lists is of an earlier state,
        unless its actions are fixed.
        """
        if isinstance(self.real, StateWorld):
            return self.real.legal(self.state)
        if self.depth and not self.real.fixed_actions:
            return ()
        return self.real.actions()

    @property
    def instruction(self) -> str:
        """The real world's instruction at the start of the episode."""
        return self._instruction

    def expert(self, state: Any, steps_left: int, rng: np.random.Generator) -> str:
        return self.real.expert(state, steps_left, rng)

    @property
    def has_expert(self) -> bool:
        return self.real.has_expert

    def proposals(self, state: Any) -> Sequence[str]:
        return self.real.proposals(state)

    def outcome(self, transitions: Sequence[Transition]) -> Verdict:
        """The real world's verdict where it knows the last state; else the imagined success.

        A world without a readable state has not taken the imagined steps, and cannot judge them.
        """
        if isinstance(self.real, StateWorld) or not self.depth:
            return self.real.outcome(transitions)
        return super().outcome(transitions)


def imagine(
    world: World.Config,
    folder: Path | None = None,
    *,
    certified_model: CertifiedModel | None = None,
    samples: int = 8,
) -> ImaginedWorld:
    """The imagined counterpart of a world, with the same episode length, split and instances."""
    config = ImaginedWorld.Config(
        world=world,
        folder=folder or Path(),
        samples=samples,
        max_steps=world.max_steps,
        split=world.split,
    )
    return ImaginedWorld(config, certified_model)


def play_in_lockstep(
    plays: Sequence[tuple[EpisodeRun, Callable[[str], object]]], policy: Policy
) -> None:
    """Play all episodes to their end, a step of each at a time; imagined steps share a batch.

    Beside each run is what carries out its actions, such as its `advance`.
    """
    while running := [play for play in plays if not play[0].over]:
        actions = [policy.act(run.moment) for run, _ in running]
        prefetch_predictions([run.world for run, _ in running], actions)
        for (_, advance), action in zip(running, actions, strict=True):
            advance(action)


def prefetch_predictions(worlds: Sequence[World], actions: Sequence[str]) -> None:
    """Predict the next steps of all imagined worlds as one batch.

    Each world then finds its own prediction in the model's cache. The worlds share one model.
    """
    imagined = [
        (world, action)
        for world, action in zip(worlds, actions, strict=True)
        if isinstance(world, ImaginedWorld)
    ]
    if imagined:
        model = imagined[0][0].certified_model
        model.predict([world.query(action) for world, action in imagined])
