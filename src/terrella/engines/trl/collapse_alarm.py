"""Warns when a run collapses (in-group spread or entropy has fallen), or masks become more.

Each warning goes to the `terrella` log, once per run.
    RlvrTrainer(..., callbacks=[CollapseAlarm()])
"""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback

from terrella.algos.diagnostics import CollapseWatch, MaskWatch

logger = logging.getLogger("terrella")


class CollapseAlarm(TrainerCallback):  # type: ignore[misc]
    """Passes the metrics that the trainer logs to a `CollapseWatch` and a `MaskWatch`."""

    def __init__(
        self, watch: CollapseWatch | None = None, mask_watch: MaskWatch | None = None
    ) -> None:
        self.watch = watch or CollapseWatch()
        self.mask_watch = mask_watch or MaskWatch()
        self.warning: str | None = None
        """The warning of a collapse, once there was one."""
        self.masks: str | None = None
        """The warning that masked verdicts have become more."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        reason = self.watch.see_step(logs or {})
        if reason and self.warning is None:
            self.warning = reason
            logger.warning("step %d: this run is collapsing: %s", state.global_step, reason)
        masks = self.mask_watch.see_step(logs or {})
        if masks and self.masks is None:
            self.masks = masks
            logger.warning("step %d: %s", state.global_step, masks)
