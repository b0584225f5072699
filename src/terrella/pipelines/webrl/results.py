"""The result of a WebRL run, and the parts of a phase that are kept as JSON.

result.test.mean, result.phases[0].practice.won
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from terrella.evals.results import RlCost
from terrella.models.policy_input import PolicyInput
from terrella.pipelines.webrl.context import BaseResult
from terrella.pipelines.webrl.curriculum import CurriculumLog, Proposals
from terrella.pipelines.webrl.metrics import (
    ActorMetrics,
    CriticMetrics,
    CriticScores,
    PracticeMetrics,
    ReplayCounts,
    SuccessScores,
)
from terrella.pipelines.webrl.outcome_model import OutcomeErrors, OutcomeModelResult


@dataclass(frozen=True, kw_only=True)
class PhaseResult:
    """One phase: what was practised, what it earned, and the policy after it."""

    phase: int
    curriculum: CurriculumLog | None
    """None with a fixed curriculum."""
    practice: PracticeMetrics
    outcome_errors: OutcomeErrors | None
    """None if the world judges."""
    replay: ReplayCounts
    critic: CriticMetrics
    actor: ActorMetrics
    validation: SuccessScores | None
    critic_scores: CriticScores | None = None
    """Scores of the critic before this phase; None where none has chosen tasks."""


@dataclass(frozen=True, kw_only=True)
class WebRlCost(RlCost):
    """Real steps by what they were used for; `env_steps` is their sum, without evaluations."""

    practice: int = 0
    checks: int = 0
    """Checks by the expert, where tasks are checked (`practice.check`)."""
    outcome_model: int = 0
    """Attempts that it was fitted to and measured on."""
    demonstrations: int = 0

    @classmethod
    def of(cls, phases: Sequence[PhaseResult], *, demonstrations: int, outcome_model: int) -> Self:
        """All real steps of an arm, those of parts that it shares with other arms included."""
        practice = sum(phase.practice.env_steps for phase in phases)
        checks = sum(phase.curriculum.checked_steps for phase in phases if phase.curriculum)
        return cls(
            env_steps=practice + checks + outcome_model + demonstrations,
            iterations=len(phases),
            practice=practice,
            checks=checks,
            outcome_model=outcome_model,
            demonstrations=demonstrations,
        )


@dataclass(frozen=True, kw_only=True)
class WebRlResult:
    """The policy before and after practice."""

    base: BaseResult
    phases: list[PhaseResult]
    test: SuccessScores
    unseen: SuccessScores | None
    """Success on the families that were never practised."""
    rl: WebRlCost
    outcome_model: OutcomeModelResult | None


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """Proposals of a phase with what an actor would see first of each; None if it cannot start."""

    proposals: Proposals
    inputs: list[PolicyInput | None]


@dataclass(frozen=True, kw_only=True)
class Values:
    """The critic's value of each proposal's first state; -1 if the world cannot be reset."""

    values: list[float]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The outcome model's probability of success for each attempt."""

    probs: list[float | None]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Steps of the replay buffer that a phase trains on: (attempt, step)."""

    steps: list[tuple[int, int]]
    counts: ReplayCounts
