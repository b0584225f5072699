"""One budget of real world steps, whatever they are spent on: training stops at the end of the step that uses it up.

The count is written into the trainer's log, and read back from it by a run that resumes.
    RlvrTrainer(..., callbacks=[StepBudget(limit=100_000, spent=7_500, count=lambda: driver.world_steps)])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

NAME = "world_steps"


class StepBudget(TrainerCallback):  # type: ignore[misc]
    """Counts, and says when it is enough."""

    def __init__(self, *, limit: int, spent: int, count: Callable[[], int]) -> None:
        """`limit` 0 only counts; `spent` is what went before training; `count` says what training took so far."""
        self.limit, self.spent, self.count = limit, spent, count

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A resumed run has spent what its log says."""
        logged = [row[NAME] for row in state.log_history if NAME in row]
        self.spent = logged[-1] if logged else self.spent

    @property
    def total(self) -> int:
        """Steps of the world so far."""
        return self.spent + self.count()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put the count beside the other figures of the step."""
        if state.log_history:
            state.log_history[-1][NAME] = self.total

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop when it is used up."""
        if self.limit and self.total >= self.limit:
            control.should_training_stop = True
