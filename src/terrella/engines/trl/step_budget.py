"""Stops training when the budget of real env steps is used up.

The count is written into the trainer's log; a resumed run reads it back from there.
    RlvrTrainer(..., callbacks=[StopAtBudget(budget, lambda: rollout.env_steps)])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import reduce
from transformers import TrainerCallback

from terrella.engines.budget import EnvStepBudget

NAME = "env_steps"


class StopAtBudget(TrainerCallback):  # type: ignore[misc]
    """Logs the env steps of each step, and ends training when they reach the limit."""

    def __init__(self, budget: EnvStepBudget, count: Callable[[], int]) -> None:
        """`count` are the env steps that this process has played since training began."""
        self.budget = budget
        self.count = count

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the count of a resumed run from its log."""
        logged = [entry[NAME] for entry in state.log_history if NAME in entry]
        self.budget.spent = logged[-1] if logged else self.budget.spent

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put the count beside the other metrics of the step."""
        if state.log_history:
            state.log_history[-1][NAME] = self.budget.total

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """All processes call it: the budget is one for all of them."""
        # `reduce` multiplies by a scale, which integers do not take.
        played = torch.tensor(float(self.count()), device=getattr(args, "device", None))
        self.budget.played = int(reduce(played, reduction="sum"))
        if self.budget.is_used_up:
            control.should_training_stop = True
