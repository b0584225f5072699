"""A memory plan as the rows of a table, and as one sentence.

for row in plan_rows(plan): table.add_row(*row)
"""

from __future__ import annotations

import math

from terrella.engines.memory.plan import COLUMNS, PhasePlan, Plan, Role

HEAD = ("phase", "role", *(name.replace("_", " ") for name in COLUMNS), "total")


def plan_rows(plan: Plan) -> list[tuple[str, ...]]:
    """A row for each role, and the sum of each phase."""
    rows: list[tuple[str, ...]] = []
    for phase in plan.phases:
        rows += [_row("", role) for role in phase.roles]
        rows[-len(phase.roles)] = (phase.name, *rows[-len(phase.roles)][1:])
        if len(phase.roles) > 1:
            rows.append(("", "all", *[""] * len(COLUMNS), size_text(phase.total)))
    return rows


def _row(phase: str, role: Role) -> tuple[str, ...]:
    cells = [size_text(getattr(role, name)) for name in COLUMNS]
    return (phase, role.name, *cells, size_text(role.total))


def size_text(size: float) -> str:
    """`310 MB`, `4.25 GB`, `21.4 GB`; empty for nothing."""
    if not size:
        return ""
    if size < 1e9:
        return f"{math.ceil(size / 1e6)} MB"
    return f"{size / 1e9:.2f} GB" if size < 1e10 else f"{size / 1e9:.1f} GB"


def verdict(plan: Plan) -> str:
    """`fits on 8xH100 with ddp: 41.2 of 74.5 GB, in rlvr: train`."""
    if not plan.phases:
        return f"no phase of this recipe holds a model on {plan.hardware}"
    worst: PhasePlan = plan.worst
    room = f"{size_text(worst.total)} of {size_text(plan.hardware.usable)}, in {worst.name}"
    how = f" with {plan.sharding}" if plan.hardware.processes > 1 else ""
    fits = "fits" if plan.fits else "does not fit"
    return f"{fits} on {plan.hardware}{how}: {room}"
