"""Warns while there is still time: the spread inside groups or the entropy has fallen and stays down.

RlvrTrainer(..., callbacks=[CollapseAlarm()]); the warning goes to the `terrella` log, once per run.
"""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback

from terrella.algos.diagnostics import CollapseWatch

logger = logging.getLogger("terrella")
WATCHED = ("in_group_std", "entropy", "zero_variance")


class CollapseAlarm(TrainerCallback):  # type: ignore[misc]
    """Feeds the watch from what the trainer logs."""

    def __init__(self, watch: CollapseWatch | None = None) -> None:
        """The watch says how low, and for how long."""
        self.watch = watch or CollapseWatch()
        self.warning: str | None = None
        """What was warned of, if anything."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """One step's figures."""
        figures = {name: logs[name] for name in WATCHED if logs and logs.get(name) is not None}
        reason = self.watch.see(**figures) if len(figures) == len(WATCHED) else None
        if reason and self.warning is None:
            self.warning = reason
            logger.warning("step %d: this run is collapsing: %s", state.global_step, reason)
