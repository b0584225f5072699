"""Metrics of WebRL: success on held-out tasks, and what a phase of practice cost and earned.

success_scores(attempts).mean
practice_metrics(attempts, outcomes).env_steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from terrella.core.errors import EngineError
from terrella.core.stats import Z95, auc, wilson
from terrella.data.attempts import Attempt, count_steps
from terrella.evals.pass_at_k import pass_metrics
from terrella.evals.results import TestScores


@dataclass(frozen=True, kw_only=True)
class SuccessScores(TestScores):
    """Success on held-out tasks, with Wilson's interval."""

    mean: float
    low: float
    high: float
    n: int
    """Attempts with a verdict."""
    families: dict[str, float]
    """Fraction of successes by family."""
    steps: float
    """Per attempt."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}], n = {self.n}"


@dataclass(frozen=True, kw_only=True)
class PracticeMetrics:
    """What a phase cost, and how it went according to the outcomes it was trained on."""

    env_steps: int
    attempts: int
    unjudged: int
    """Attempts without an outcome: masked, or the outcome model abstained."""
    won: float | None
    """Fraction of successes; None if nothing was judged."""


@dataclass(frozen=True, kw_only=True)
class CriticMetrics:
    """Losses of the critic in one phase; None if it was not trained."""

    first_loss: float | None = None
    last_loss: float | None = None
    """Mean of the last ten updates."""


@dataclass(frozen=True, kw_only=True)
class CriticScores:
    """How well the critic told later successes from failures, before they were played.

    Its values are those that admitted the tasks. The baseline knows the family only: its success in
    earlier phases. A critic that is no better has learnt nothing of the page.
    """

    n: int
    """Attempts with a value and an outcome."""
    won: int
    auc: float | None
    """The chance that a success had the higher value than a failure; None without both."""
    low: float | None
    high: float | None
    """Its 95% interval, over attempts."""
    family_auc: float | None
    """The same of the family's earlier rate of success."""


@dataclass(frozen=True, kw_only=True)
class ActorMetrics:
    """One phase of the actor: means of the last updates; None if there was nothing to train on."""

    loss: float | None = None
    moved: float | None = None
    """Mean absolute log-ratio per token to the actor at the start of the phase."""
    advantage: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReplayCounts:
    """Steps of the replay buffer by how likely the actor finds them, and how many were drawn."""

    buffer_steps: int
    foreign: int
    certain: int
    in_band: int
    drawn: int


def success_scores(attempts: Sequence[Attempt]) -> SuccessScores:
    """Scores in the order of the tasks; attempts without a verdict are in no figure.

    Nor is a family of which no attempt has one.
    """
    known = [attempt for attempt in attempts if attempt.success is not None]
    if not known:
        raise EngineError(
            "evaluation",
            f"all {len(attempts)} attempts are masked",
            "look into the log for the cause, mend it and run the same command again",
        )
    successes = [int(bool(attempt.success)) for attempt in attempts]
    judged = [int(attempt.success is not None) for attempt in attempts]
    by_family: dict[str, list[int]] = {}
    for attempt in known:
        by_family.setdefault(attempt.task.family, []).append(int(bool(attempt.success)))
    masked = len(attempts) - len(known)
    low, high = wilson(sum(successes), len(known))
    return SuccessScores(
        successes=successes,
        samples=1,
        passes=pass_metrics(successes, judged, 1),
        judged=judged if masked else None,
        masked=masked,
        mean=sum(successes) / len(known),
        low=low,
        high=high,
        n=len(known),
        families={name: float(np.mean(values)) for name, values in by_family.items()},
        steps=float(np.mean([len(attempt.choices) for attempt in known])),
    )


def critic_scores(
    values: Sequence[float], family_rates: Sequence[float], outcomes: Sequence[float]
) -> CriticScores:
    """The critic and its baseline on the same attempts."""
    won = sum(outcome >= 0.5 for outcome in outcomes)
    area = auc(values, outcomes)
    low, high = (None, None) if area is None else _auc_interval(area, won, len(outcomes) - won)
    return CriticScores(
        n=len(outcomes),
        won=won,
        auc=area,
        low=low,
        high=high,
        family_auc=auc(family_rates, outcomes),
    )


def _auc_interval(area: float, won: int, lost: int) -> tuple[float, float]:
    """95% by Hanley and McNeil's variance, with the area drawn towards a half as by one pair.

    Without that, an area of 1 of two attempts would be certain.
    """
    drawn = (area * won * lost + 0.5) / (won * lost + 1)
    first, second = drawn / (2 - drawn), 2 * drawn**2 / (1 + drawn)
    spread = drawn * (1 - drawn)
    spread += (won - 1) * (first - drawn**2) + (lost - 1) * (second - drawn**2)
    half = Z95 * float(np.sqrt(spread / (won * lost)))
    return max(0.0, min(area, drawn - half)), min(1.0, max(area, drawn + half))


def practice_metrics(
    attempts: Sequence[Attempt], outcomes: Sequence[float | None]
) -> PracticeMetrics:
    judged = [outcome for outcome in outcomes if outcome is not None]
    return PracticeMetrics(
        env_steps=count_steps(attempts),
        attempts=len(attempts),
        unjudged=len(outcomes) - len(judged),
        won=float(np.mean(judged)) if judged else None,
    )
