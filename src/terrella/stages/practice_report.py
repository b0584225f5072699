"""Figures of practice: what a phase earned, what an evaluation found, with intervals.

    success_figures(attempts)["mean"]; practice_figures(attempts, outcomes)["world_steps"]
"""  # fmt: skip

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from terrella.core.stats import wilson
from terrella.data.attempts import Attempt
from terrella.use.pass_at_k import bootstrap_mean


def success_figures(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Successes in the order of the tasks. A broken episode counts as a failure of the whole, and is counted apart."""
    won = [int(bool(attempt.success)) for attempt in attempts]
    groups: dict[str, list[int]] = {}
    for attempt, success in zip(attempts, won, strict=True):
        groups.setdefault(attempt.task.family, []).append(success)
    low, high = wilson(sum(won), len(won))
    return {
        "successes": won, "samples": 1, "pass": {"1": asdict(bootstrap_mean(won))}, "mean": float(np.mean(won)),
        "low": low, "high": high, "n": len(won), "masked": sum(attempt.success is None for attempt in attempts),
        "families": {name: float(np.mean(values)) for name, values in groups.items()},
        "steps": float(np.mean([len(attempt.choices) for attempt in attempts])),
    }  # fmt: skip


def practice_figures(attempts: Sequence[Attempt], outcomes: Sequence[float | None]) -> dict[str, Any]:
    """What a phase cost and how it went, as judged."""
    judged = [outcome for outcome in outcomes if outcome is not None]
    return {
        "world_steps": sum(len(attempt.choices) for attempt in attempts),
        "attempts": len(attempts),
        "unjudged": len(outcomes) - len(judged),
        "won": float(np.mean(judged)) if judged else None,
    }
