"""A trainer's progress on our display: step, reward, zero-variance groups, masked verdicts, seconds by phase.

RlvrTrainer(..., callbacks=[ShowProgress(progress, "rlvr")])
A run that ends with a budget of world steps is measured by it: pass the budget, and name it first in the callbacks.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from terrella.core.protocols import Progress
from terrella.engines.trl.step_budget import StepBudget

SHOWN = ("loss", "reward", "zero_variance", "masked", "entropy", "mismatch/max", "seconds/generate", "seconds/train")


class ShowProgress(TrainerCallback):  # type: ignore[misc]
    """Forwards what the trainer logs."""

    def __init__(self, progress: Progress, phase: str, budget: StepBudget | None = None) -> None:
        """`phase` is the name on the display; a `budget` without a limit is not what ends the run."""
        self.progress, self.budget = progress, budget if budget and budget.limit else None
        self.name = f"{phase}, world steps" if self.budget else phase

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A new phase, counted from where a resumed run stands."""
        self.progress.phase(self.name, self.budget.limit if self.budget else state.max_steps)
        self.progress.advance(self._done(state))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """The figures worth showing."""
        figures = {key: float(value) for key, value in (logs or {}).items() if key in SHOWN and value is not None}
        if self.budget:
            figures["step"] = state.global_step
        self.progress.advance(self._done(state), **figures)

    def _done(self, state: Any) -> int:
        return self.budget.total if self.budget else int(state.global_step)
