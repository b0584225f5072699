"""Scores of an evaluated agent, from the rows of its episodes.

Instances are the units: a metric is a mean over instances of means over their samples, and its
interval is over instances. Two agents on the same instances are compared in pairs. Masked episodes
are in no mean; an instance with fewer than k judged samples is left out of pass@k, and counted.
    scores = agent_scores(rows, samples=64, reference=None); scores.passes["64"]
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from terrella.core.errors import EngineError
from terrella.core.metric import Metric
from terrella.evals.agent_rows import EpisodeRow
from terrella.evals.pass_at_k import (
    bootstrap_mean,
    paired_difference,
    pass_metrics,
    pass_values,
    share_mean,
)
from terrella.evals.reply_counts import ReplyCounts, WrittenScores, written_scores
from terrella.evals.results import ReferenceScores
from terrella.policies.chat_client import Usage

Groups = Sequence[Sequence[EpisodeRow]]
"""Judged episodes by instance."""
PartOf = Callable[[EpisodeRow], tuple[float, float]]
"""Numerator and denominator of a ratio."""


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What was won on each instance: all that a paired comparison needs."""

    instances: list[str]
    """Names (hashes) of the instances, in the order of the lists below."""
    successes: list[int]
    """Successful samples by instance."""
    judged: list[int]
    """Samples by instance that were not masked."""


@dataclass(frozen=True, kw_only=True)
class AgentScores(Outcomes):
    """How an agent did on held-out instances of one world."""

    samples: int
    """Episodes per instance."""
    passes: dict[str, Metric]
    """pass@k by k: "1", "2", "4", ...; pass@1 is the rate of success."""
    score: Metric
    """Mean verdict: above the rate of success in worlds with partial credit."""
    well_formed: Metric
    """Fraction of the replies in the expected form."""
    valid_actions: Metric
    """Fraction of the actions that the world could take."""
    effective_actions: Metric
    """Fraction of the actions that changed the state."""
    steps: Metric
    """Actions per episode."""
    turns: Metric
    """Replies per episode."""
    reply_tokens: Metric
    """Written tokens per reply, thoughts included."""
    written: WrittenScores
    """Replies that were cut off, and thoughts."""
    out_of_tokens: Metric
    """Fraction of the episodes that ran out of tokens before the world or the steps ended them."""
    masked: dict[str, int]
    """Masked episodes by cause."""
    masked_reason: str
    """Why the first of them was masked."""
    usage: Usage
    reference: ReferenceScores | None = None
    """Exact scores of random and optimal play; None where the world is too large for them."""


def agent_scores(
    rows: Sequence[EpisodeRow], *, samples: int, reference: ReferenceScores | None
) -> AgentScores:
    """The scores of all episodes of one world."""
    groups: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        groups.setdefault(row.instance, []).append(row)
    judged = [[row for row in group if row.value is not None] for group in groups.values()]
    masked = [row for row in rows if row.value is None]
    if not any(judged):
        raise EngineError(
            "evaluate",
            f"all {len(rows)} episodes were masked; the first: {masked[0].reason}",
            "mend the cause and run the same command again",
        )
    successes = [sum(row.won for row in group) for group in judged]
    counts = [len(group) for group in judged]
    return AgentScores(
        instances=list(groups),
        successes=successes,
        judged=counts,
        samples=samples,
        passes=pass_metrics(successes, counts, samples),
        score=_share(judged, lambda row: (row.value or 0.0, 1)),
        well_formed=_share(judged, lambda row: (row.well_formed, row.turns)),
        valid_actions=_share(judged, lambda row: (row.valid, row.steps)),
        effective_actions=_share(judged, lambda row: (row.effective, row.steps)),
        steps=_mean(judged, lambda row: (row.steps, 1)),
        turns=_mean(judged, lambda row: (row.turns, 1)),
        reply_tokens=_mean(judged, lambda row: (row.usage.completion_tokens, row.usage.requests)),
        written=written_scores(
            [sum((row.written for row in group), ReplyCounts()) for group in judged if group]
        ),
        out_of_tokens=_share(judged, lambda row: (row.out_of_tokens, 1)),
        masked=dict(Counter(row.status for row in masked)),
        masked_reason=masked[0].reason if masked else "",
        usage=sum((row.usage for row in rows), Usage()),
        reference=reference,
    )


def compare_passes(first: Outcomes, second: Outcomes, k: int) -> Metric | None:
    """pass@k of the first minus the second, paired by instance; None without a common instance."""
    by_name = [
        dict(zip(scores.instances, pass_values(scores.successes, scores.judged, k), strict=True))
        for scores in (first, second)
    ]
    pairs = [
        (one, other)
        for name, one in by_name[0].items()
        if one is not None and (other := by_name[1].get(name)) is not None
    ]
    if not pairs:
        return None
    ours, theirs = np.array(pairs, dtype=np.float64).T
    return paired_difference(ours, theirs)


def _share(groups: Groups, part_of: PartOf) -> Metric:
    """The mean over instances of a ratio that is in [0, 1]."""
    values = _ratios(groups, part_of)
    return dataclasses.replace(share_mean(values), masked=len(groups) - len(values))


def _mean(groups: Groups, part_of: PartOf) -> Metric:
    """The mean over instances of a ratio."""
    values = _ratios(groups, part_of)
    return dataclasses.replace(bootstrap_mean(values), masked=len(groups) - len(values))


def _ratios(groups: Groups, part_of: PartOf) -> list[float]:
    """A ratio of sums for each instance that has one."""
    values = []
    for group in groups:
        parts = [part_of(row) for row in group]
        whole = sum(denominator for _, denominator in parts)
        if whole:
            values.append(sum(numerator for numerator, _ in parts) / whole)
    return values
