"""Shows a trainer's progress: step, reward, zero-variance groups, masked verdicts, seconds.

A run that ends with a budget of env steps is measured by that budget: pass it here, and put its
`StopAtBudget` before this callback.
    RlvrTrainer(..., callbacks=[ShowProgress(progress, "rlvr")])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from terrella.core.protocols import Progress
from terrella.engines.budget import EnvStepBudget

SHOWN = ("reward", "loss", "zero_variance", "masked", "seconds/generate", "seconds/train")
"""What a person can act on; `curve.jsonl` has everything else that is logged."""


class ShowProgress(TrainerCallback):  # type: ignore[misc]
    """Passes the metrics that the trainer logs to a `Progress`."""

    def __init__(self, progress: Progress, phase: str, budget: EnvStepBudget | None = None) -> None:
        """`phase` is the name on the display. A `budget` without a limit is ignored."""
        self.progress = progress
        self.budget = budget if budget and budget.limit else None
        self.name = f"{phase}, env steps" if self.budget else phase
        self._metrics: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start a phase; a resumed run starts at the step it has reached."""
        self.progress.phase(self.name, self.budget.limit if self.budget else state.max_steps)
        self.progress.advance(self._done(state))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Show an update that is not logged: with a large model the next log is minutes away."""
        if state.global_step % args.logging_steps:
            self.progress.advance(self._done(state), **self._metrics)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        metrics = {
            key: float(value)
            for key, value in (logs or {}).items()
            if key in SHOWN and value is not None
        }
        if "reward" in metrics:  # its loss says nothing: it should neither fall nor rise
            metrics.pop("loss", None)
        if self.budget:
            metrics["step"] = state.global_step
        self._metrics = metrics
        self.progress.advance(self._done(state), **metrics)

    def _done(self, state: Any) -> int:
        return self.budget.total if self.budget else int(state.global_step)
