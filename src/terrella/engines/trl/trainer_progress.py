"""A trainer's progress on our display: step, reward, zero-variance groups, masked verdicts, seconds by phase.

RlvrTrainer(..., callbacks=[ShowProgress(progress, "rlvr")])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from terrella.core.protocols import Progress

SHOWN = ("loss", "reward", "zero_variance", "masked", "entropy", "mismatch/max", "seconds/generate", "seconds/train")


class ShowProgress(TrainerCallback):  # type: ignore[misc]
    """Forwards what the trainer logs."""

    def __init__(self, progress: Progress, phase: str) -> None:
        """`phase` is the name on the display."""
        self.progress, self.name = progress, phase

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A new phase, counted from where a resumed run stands."""
        self.progress.phase(self.name, state.max_steps)
        self.progress.advance(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """The figures worth showing."""
        figures = {key: float(value) for key, value in (logs or {}).items() if key in SHOWN and value is not None}
        self.progress.advance(state.global_step, **figures)
