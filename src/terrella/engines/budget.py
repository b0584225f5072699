"""A budget of real env steps, whatever they are used for.

EnvStepBudget(limit=100_000, spent=7_500, count=lambda: rollout.env_steps)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class EnvStepBudget:
    """Real env steps that training may use; it stops at the end of the step that uses them up."""

    limit: int
    """0 counts and never stops."""
    spent: int
    """Steps used before training."""
    count: Callable[[], int]
    """Steps that training has used so far in this process."""
    played: int = 0
    """The same over all processes of the run, after the last training step."""

    @property
    def total(self) -> int:
        return self.spent + self.played
