"""A budget of real env steps, whatever they are used for.

EnvStepBudget(limit=100_000, spent=7_500)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EnvStepBudget:
    """Real env steps that training may use; it stops at the end of the step that uses them up."""

    limit: int = 0
    """0 counts and never stops."""
    spent: int = 0
    """Steps used before training."""
    played: int = 0
    """Steps that training has used so far; the engine counts them."""

    @property
    def total(self) -> int:
        return self.spent + self.played

    @property
    def is_used_up(self) -> bool:
        return bool(self.limit) and self.total >= self.limit
