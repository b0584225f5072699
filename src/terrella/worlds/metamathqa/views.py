"""The state of an attempt, and its view as a JSON object that reads back.

Nothing in it is derived from the true answer.
    AttemptView(table, max_tries=5).read(observation)
"""

from __future__ import annotations

from dataclasses import dataclass

from terrella.core.types import Observation
from terrella.core.views import RecordView
from terrella.worlds.metamathqa.table import ProblemTable


@dataclass(frozen=True, slots=True)
class AnswerAttempt:
    """A question and the progress on it.

    The given answers are not stored: they are untrusted and of any length.
    """

    question: str
    wrong_tries: int = 0
    solved: bool = False


class AttemptView(RecordView):
    """An attempt as JSON. `read` accepts only questions of the table."""

    legend = (
        'The state is a JSON object: "question", "wrong_tries" so far, '
        'and "solved" once a right answer has been given.'
    )

    def __init__(self, table: ProblemTable, max_tries: int) -> None:
        super().__init__(AnswerAttempt)
        self.table = table
        self.max_tries = max_tries

    def read(self, observation: Observation) -> AnswerAttempt | None:
        attempt = super().read(observation)
        if not isinstance(attempt, AnswerAttempt) or attempt.question not in self.table.problems:
            return None
        possible = 0 <= attempt.wrong_tries <= self.max_tries - attempt.solved
        return attempt if possible and self.show(attempt) == observation else None
