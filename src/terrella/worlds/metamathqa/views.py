"""An attempt at a question as a JSON object, and back. It shows nothing that is made from the answer.

AttemptView(table, max_tries=5).read(observation)
"""

from __future__ import annotations

from dataclasses import dataclass

from terrella.core.types import Observation
from terrella.core.views import RecordView
from terrella.worlds.metamathqa.table import Table


@dataclass(frozen=True, slots=True)
class Attempt:
    """A question, and how it stands. What was answered is not kept: it is untrusted, and of any length."""

    question: str
    wrong_tries: int = 0
    solved: bool = False


class AttemptView(RecordView):
    """The attempt as JSON; only questions of the table are read back."""

    legend = (
        'The state is a JSON object: "question", "wrong_tries" so far, and "solved" once a right answer has been given.'
    )

    def __init__(self, table: Table, max_tries: int) -> None:
        """The table says which questions there are."""
        super().__init__(Attempt)
        self.table, self.max_tries = table, max_tries

    def read(self, observation: Observation) -> Attempt | None:
        """The attempt again, or None."""
        attempt = super().read(observation)
        if not isinstance(attempt, Attempt) or attempt.question not in self.table.rows:
            return None
        possible = 0 <= attempt.wrong_tries <= self.max_tries - attempt.solved
        return attempt if possible and self.show(attempt) == observation else None
