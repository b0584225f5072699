"""A world model behind Gymnasium's door: any program that plays a `gymnasium.Env` can play in imagination.

Episodes start where the real world's do and go on in beliefs; `info` says how risky each step is, how deep it lies and
what the certificate says of it. A seed gives the same episode. A prediction that no state looks like ends the episode.
    world = imagine(FrozenLake.Config(size=3), Path("runs/lake"))
    observation, info = world.reset(seed=0); world.step("Right")[-1]["risk"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from terrella.core.types import Observation, Situation, Transition, Verdict
from terrella.core.world import StateWorld, Step, World
from terrella.data.store import EpisodeStore
from terrella.trust.beliefs import Belief, Question
from terrella.trust.certificate import Certificate, Trust
from terrella.trust.nearness import NearestData
from terrella.trust.risk import Assessor
from terrella.use.world_models import load_world_model

CERTIFICATE = "certificate/certificate.json"


@dataclass(frozen=True)
class Imagination:
    """A model, its risk, and its certificate if it has one."""

    assessor: Assessor
    certificate: Certificate | None = None

    def verdict(self, risk: float, depth: int) -> Trust:
        """What the certificate says; without one nothing is certified."""
        return Trust.NOT_CERTIFIED if self.certificate is None else self.certificate.verdict(risk, depth=depth)


@lru_cache(maxsize=4)
def load_imagination(folder: Path, samples: int) -> Imagination:
    """What `train-world-model` and `certify` left in a folder; loaded once, and shared by all worlds that ask."""
    path = folder / CERTIFICATE
    certificate = Certificate.load(path) if path.exists() else None
    data = NearestData(EpisodeStore.open(folder / "data").transitions())
    model = load_world_model(folder / "model", samples=samples)
    return Imagination(Assessor(model, data, certificate.risk if certificate else None), certificate)


class ImaginedWorld(World):
    """A world that is only believed. Use `imagine` to make one from the config of the real world."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The real world (for beginnings, rules and action names) and the folder of its model."""

        world: World.Config
        folder: Path = Path()
        samples: int = 8

    name: ClassVar[str] = "imagined"
    config: Config

    def __init__(self, config: Config, imagination: Imagination | None = None) -> None:
        """`imagination` is loaded from the folder, when it is first needed, unless given."""
        super().__init__(config)
        self.real: World = config.world.build()
        self._imagination = imagination
        self.verifier = self.real.verifier
        self.observation_space, self.action_space = self.real.observation_space, self.real.action_space
        self.history: tuple[Transition, ...] = ()
        self.depth = 0
        self.told: dict[str, Any] = {}

    @property
    def imagination(self) -> Imagination:
        """Model, risk and certificate."""
        if self._imagination is None:
            self._imagination = load_imagination(self.config.folder, self.config.samples)
        return self._imagination

    # --- beginnings: the real world's -----------------------------------------------------------------------------

    def _draw_instance(self) -> None:
        seen, _ = self.real.reset(seed=self.seed, options={"split": self.split, "noise_seed": self.noise_seed})
        self.instance, self._seen, self._instruction = self.real.instance, seen, self.real.instruction
        self.history, self.depth, self.told = (), 0, {"risk": 0.0, "depth": 0, "trust": Trust.TRUSTED.value}

    def _start(self, rng: np.random.Generator) -> Any:
        raise NotImplementedError("an imagined world begins where the real one does")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode at a real beginning; options as for the real world."""
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, **self.told}

    # --- steps: believed ------------------------------------------------------------------------------------------

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """As any world; `info` has `risk`, `depth` and `trust`, the certificate's verdict."""
        before = self._seen
        observation, reward, terminated, truncated, info = super().step(action)
        info |= self.told
        done = Transition(observation=before, action=action, next_observation=observation, reward=reward,
                          terminated=terminated, truncated=truncated, info=info)  # fmt: skip
        self.history = (*self.history, done)
        return observation, reward, terminated, truncated, info

    def question(self, action: str) -> Question:
        """What the model is asked about this action now."""
        situation = Situation(
            instruction=self._instruction, observation=self._seen, actions=self.actions(), history=self.history,
            steps_left=self.config.max_steps - self.steps,
        )  # fmt: skip
        return Question(situation, action)

    def _act(self, action: str) -> Step:
        legal = self.actions()
        if legal and action not in legal:  # by the contract of all worlds, not by the model
            self.told = {"risk": 0.0, "depth": self.depth, "trust": Trust.TRUSTED.value}
            return Step(getattr(self.real, "invalid_reward", 0.0), False, False, valid=False, effective=False)
        return self._imagine(action)

    def _imagine(self, action: str) -> Step:
        ((belief, risk),) = self.imagination.assessor.assess([self.question(action)])
        return self._dream(belief, risk, self.imagination.verdict(risk, self.depth + 1))

    def _dream(self, belief: Belief, risk: float, verdict: Trust) -> Step:
        """Draw what comes next from a belief."""
        self.depth += 1
        self.told = {"risk": risk, "depth": self.depth, "trust": verdict.value}
        prediction = belief.draw(self.noise.random())
        if prediction is None or not self._possible(prediction.observation):
            self.told |= {"risk": 1.0, "unreadable": True}
            return Step(0.0, True, False, valid=True, effective=False)
        effective = prediction.observation != self._seen
        self._seen = prediction.observation
        return Step(prediction.reward, prediction.terminated, prediction.success, valid=True, effective=effective)

    def _possible(self, observation: Observation) -> bool:
        """Whether this is an observation of some state; worlds that cannot tell believe everything."""
        return not isinstance(self.real, StateWorld) or self.real.view.read(observation) is not None

    # --- what the real world knows of a believed state ------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The state that the current observation shows; None where the real world cannot read it back."""
        return self.real.view.read(self._seen) if isinstance(self.real, StateWorld) else None

    def _observe(self) -> Observation:
        return self._seen

    def actions(self) -> tuple[str, ...]:
        """The real world's, in the believed state."""
        return self.real.legal(self.state) if isinstance(self.real, StateWorld) else self.real.actions()

    @property
    def instruction(self) -> str:
        """The real world's, as at the beginning of the episode."""
        return self._instruction

    def expert(self, state: Any, steps_left: int, rng: np.random.Generator) -> str:
        """The real world's expert, asked about the believed state."""
        return self.real.expert(state, steps_left, rng)

    @property
    def has_expert(self) -> bool:
        """As the real world."""
        return self.real.has_expert

    def proposals(self, state: Any) -> Sequence[str]:
        """The real world's, in the believed state."""
        return self.real.proposals(state)

    def outcome(self, transitions: Sequence[Transition]) -> Verdict:
        """The real world's judgement of what was believed to happen."""
        return self.real.outcome(transitions)


def imagine(
    world: World.Config, folder: Path | None = None, *, imagination: Imagination | None = None, samples: int = 8
) -> ImaginedWorld:
    """The imagined twin of a world: same length of episodes, same split, same instances."""
    config = ImaginedWorld.Config(
        world=world, folder=folder or Path(), samples=samples, max_steps=world.max_steps, split=world.split
    )
    return ImaginedWorld(config, imagination)
