"""What the critic said of a phase's tasks before they were played, and how right it was.

score_critic(phase, record, attempts, outcomes).auc
"""

from __future__ import annotations

from collections.abc import Sequence

from terrella.core.config import record_from_json
from terrella.core.run_folder import read_part
from terrella.data.attempts import Attempt
from terrella.pipelines.webrl.metrics import CriticScores, critic_scores
from terrella.pipelines.webrl.phase import Phase
from terrella.pipelines.webrl.proposers import PracticeRecord
from terrella.pipelines.webrl.results import Proposed, Values

UNKNOWN_RATE = 0.5
"""Success rate of a family that no earlier phase has tried."""


def task_values(phase: Phase) -> dict[str, float]:
    """The critic's value of every proposal, by the task's name; empty where none was asked."""
    path = phase.file("values.json")
    if not path.exists():
        return {}
    proposed = record_from_json(Proposed, read_part(phase.file("proposed.json")))
    names = [task.name for task in proposed.proposals.tasks]
    return dict(zip(names, record_from_json(Values, read_part(path)).values, strict=True))


def score_critic(
    phase: Phase,
    record: PracticeRecord,
    attempts: Sequence[Attempt],
    outcomes: Sequence[float | None],
) -> CriticScores | None:
    """The critic that chose this phase's tasks; `record` holds the phases before it."""
    values = task_values(phase)
    if not values:
        return None
    judged = [
        (values[attempt.task.name], _rate(record, attempt.task.family), outcome)
        for attempt, outcome in zip(attempts, outcomes, strict=True)
        if outcome is not None and attempt.task.name in values
    ]
    said, rates, known = ([each[n] for each in judged] for n in range(3))
    return critic_scores(said, rates, known)


def _rate(record: PracticeRecord, family: str) -> float:
    rate = record.latest(family)
    return UNKNOWN_RATE if rate is None else rate
