"""The settings of a certificate, and the records that its sections share.

config = CertifyConfig(world=FrozenLake.Config(size=3), folder=Path("runs/lake"))
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from terrella.core.bounds import check_above_zero, check_least, check_share
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import WorldModel
from terrella.core.world import World
from terrella.engines.configs import EngineConfig
from terrella.trust.nearness import NearestData


@dataclass(frozen=True, kw_only=True)
class CertifyConfig(EngineConfig):
    """What to measure, on how much data, and which errors are acceptable."""

    world: World.Config
    folder: Local[Path]
    """What `train-world-model` wrote; the certificate goes into it."""
    policy: Configurable.Config | None = None
    """Takes the steps that the model predicts.

    The default is the policy that took the steps the model was fitted to.
    """
    beside: tuple[Configurable.Config, ...] | None = None
    """Further policies for which the certificate holds; each takes a step in every instance.

    The default is random play and the expert if the data are of a mixture of them and `policy` is
    not set, else none.
    """
    policies: tuple[Configurable.Config, ...] | None = None
    """Policies to rank; `()` skips the section.

    The default is a ladder from the expert, if there is one, down to random play.
    """
    samples: int = 8
    level: float = 0.9
    """How often the prediction set of a random step of a random episode must hold the result."""
    step_error: float = 0.03
    """Acceptable error among the steps that the gate imagines; each step counts alike."""
    horizon_error: float = 0.15
    """Acceptable error after as many imagined steps as the safe horizon."""
    calibration: int = 800
    """Validation instances."""
    held_out: int = 600
    """Test instances."""
    horizon_episodes: int = 150
    """Test instances in which each policy plays an episode.

    The horizon ends where too few of them last longer (`trust.horizon.least_reached`).
    """
    depth: int = 8
    ranked_on: int = 100
    """Test instances that each ranked policy plays; 0 skips the section."""
    exploited_on: int = 100
    """Test instances that a planner plays, in the model and in reality; 0 skips the section."""
    plan_depth: int = 6
    """Steps that this planner looks ahead."""
    plan_states: int = 200
    """States that a plan expands at most.

    A model whose predictions scatter reaches thousands in six steps.
    """
    least: int = 100
    """Fewest calibration and held-out instances with which anything is certified."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers with which nothing can be measured."""
        check_above_zero(self, "level")
        if self.level >= 1:
            raise ConfigError(
                "level", f"is {self.level}, and no set holds every result", "set level below 1"
            )
        check_share(self, "step_error", "horizon_error")
        check_least(self, samples=1, calibration=1, held_out=1, horizon_episodes=1)
        check_least(self, depth=1, plan_depth=1, plan_states=1, least=1)

    @property
    def under(self) -> tuple[Configurable.Config, ...]:
        """The policies that the certificate holds for."""
        assert self.policy is not None  # set by the pipeline
        return (self.policy, *(self.beside or ()))


@dataclass(frozen=True)
class Evidence:
    """The model that is certified, its world, and the data it was fitted to."""

    world: World
    model: WorldModel
    data: NearestData


@dataclass(frozen=True)
class StepPredictions:
    """Real steps, one of each policy per instance, with the model's predictions and their errors.

    The steps of an instance follow each other.
    """

    queries: list[Query]
    changed: np.ndarray
    """Whether the step changed the observation."""
    signals: np.ndarray
    wrong: np.ndarray
    """Mass of the true distribution that the model would not produce."""
    probs: np.ndarray
    """What the model gives to the result that really followed."""
    distributions: list[PredictiveDistribution]
    truths: list[PredictiveDistribution]
    policies: np.ndarray
    """Number of the policy that took each step, in the order of `CertifyConfig.under`."""
    instances: list[str]
    """The instance of each step."""
    lengths: np.ndarray
    """Steps of the episode that each step was drawn from."""

    @property
    def distinct(self) -> int:
        """How many instances."""
        return len(set(self.instances))
