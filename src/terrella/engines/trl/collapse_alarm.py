"""Warns when a run collapses: in-group spread or entropy has fallen and stays low.

The warning goes to the `terrella` log, once per run.
    RlvrTrainer(..., callbacks=[CollapseAlarm()])
"""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback

from terrella.algos.diagnostics import CollapseWatch

logger = logging.getLogger("terrella")


class CollapseAlarm(TrainerCallback):  # type: ignore[misc]
    """Passes the metrics that the trainer logs to a `CollapseWatch`."""

    def __init__(self, watch: CollapseWatch | None = None) -> None:
        self.watch = watch or CollapseWatch()
        self.warning: str | None = None
        """The warning, once there was one."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        reason = self.watch.see_step(logs or {})
        if reason and self.warning is None:
            self.warning = reason
            logger.warning("step %d: this run is collapsing: %s", state.global_step, reason)
