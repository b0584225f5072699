"""Scores of an evaluated world model, from the rows of its predictions.

Accuracy is the share of predictions that the verifier finds fully correct. Instances are the units
of the intervals. Beside every accuracy stands that of predicting no change, on the same steps.
    scores = prediction_scores(rows); scores.changed.model, scores.changed.no_change
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from terrella.core.errors import EngineError
from terrella.core.metric import Metric
from terrella.evals.pass_at_k import share_mean
from terrella.evals.predictions import PredictionRow, StepRow, is_unparsable
from terrella.evals.reply_counts import ReplyCounts, WrittenScores, written_scores
from terrella.policies.chat_client import Usage


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Accuracy of a model and of predicting no change, on the same steps."""

    model: Metric
    no_change: Metric | None
    """None if the verifier failed on all of them."""
    steps: int


@dataclass(frozen=True, kw_only=True)
class PredictionScores:
    """How a world model did on held-out instances of one world."""

    instances: list[str]
    overall: Accuracy
    changed: Accuracy | None
    """Steps whose observation changed; None if none did."""
    unchanged: Accuracy | None
    invalid: Metric
    """Share of the replies that could not be read; they are wrong."""
    written: WrittenScores
    """Replies that were cut off, and thoughts, those in imagination included."""
    score: Metric
    """Mean verdict: above the accuracy where the verifier gives partial credit."""
    horizon: list[Accuracy | None]
    """Accuracy k + 1 steps ahead in imagination; the no-change model keeps the first one.

    None where every verdict was masked.
    """
    masked: int
    """Instances without a prediction: the endpoint failed."""
    masked_reason: str
    usage: Usage


def prediction_scores(rows: Sequence[PredictionRow]) -> PredictionScores:
    """The scores of all instances of one world."""
    known = [row for row in rows if not row.reason]
    masked = [row for row in rows if row.reason]
    groups = [row.steps for row in known]
    overall = _accuracy(groups)
    if overall is None:
        reason = masked[0].reason if masked else "the verifier failed on every step"
        raise EngineError(
            "evaluate",
            f"nothing was predicted on {len(rows)} instances; the first: {reason}",
            "mend the cause and run the same command again",
        )
    depths = max(len(row.imagined) for row in known)
    by_depth = [_accuracy([row.imagined[k : k + 1] for row in known]) for k in range(depths)]
    return PredictionScores(
        instances=[row.instance for row in rows],
        overall=overall,
        changed=_accuracy([[step for step in group if step.changed] for group in groups]),
        unchanged=_accuracy([[step for step in group if not step.changed] for group in groups]),
        invalid=_mean(groups, lambda step: float(is_unparsable(step))),
        written=written_scores([_written(row) for row in known]),
        score=_mean(groups, lambda step: step.value),
        horizon=by_depth,
        masked=len(masked),
        masked_reason=masked[0].reason if masked else "",
        usage=sum((row.usage for row in rows), Usage()),
    )


def _written(row: PredictionRow) -> ReplyCounts:
    return sum((step.written for step in (*row.steps, *row.imagined)), ReplyCounts())


def _accuracy(groups: Sequence[Sequence[StepRow]]) -> Accuracy | None:
    """None if no step is left to judge."""
    judged = [[step for step in group if step.value is not None] for group in groups]
    judged = [group for group in judged if group]
    if not judged:
        return None
    unmoved = [group for group in judged if any(step.no_change is not None for step in group)]
    return Accuracy(
        model=_mean(judged, lambda step: _correct(step.value)),
        no_change=_mean(unmoved, lambda step: _correct(step.no_change)) if unmoved else None,
        steps=sum(map(len, judged)),
    )


def _correct(value: float | None) -> float | None:
    return None if value is None else float(value == 1.0)


def _mean(
    groups: Sequence[Sequence[StepRow]], value_of: Callable[[StepRow], float | None]
) -> Metric:
    """The mean over instances of the means over their steps; masked steps are left out."""
    means: list[float] = []
    masked = 0
    for group in groups:
        values = [value_of(step) for step in group]
        known = [value for value in values if value is not None]
        masked += len(values) - len(known)
        if known:
            means.append(sum(known) / len(known))
    return dataclasses.replace(share_mean(means), masked=masked)
