"""Stops training when the budget of real env steps is used up.

The count is written into the trainer's log; a resumed run reads it back from there.
    RlvrTrainer(..., callbacks=[StopAtBudget(budget)])
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from transformers import TrainerCallback

from terrella.engines.budget import EnvStepBudget

NAME = "env_steps"


class StopAtBudget(TrainerCallback):  # type: ignore[misc]
    """Logs the env steps of each step, and ends training when they reach the limit."""

    def __init__(self, budget: EnvStepBudget) -> None:
        self.budget = budget

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the count of a resumed run from its log."""
        logged = [entry[NAME] for entry in state.log_history if NAME in entry]
        self.budget.spent = logged[-1] if logged else self.budget.spent

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put the count beside the other metrics of the step."""
        if state.log_history:
            state.log_history[-1][NAME] = self.budget.total

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Each process plays its own tasks; all of them stop at the same step."""
        self.budget.played = _over_processes(self.budget.count())
        if self.budget.limit and self.budget.total >= self.budget.limit:
            control.should_training_stop = True


def _over_processes(count: int) -> int:
    state = PartialState()
    if state.num_processes == 1:
        return count
    # `reduce` multiplies by a scale, which integers do not take.
    return int(reduce(torch.tensor(float(count), device=state.device)))
