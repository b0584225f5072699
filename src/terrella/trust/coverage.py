"""How much of what an agent will meet lies in or near the data a world model was trained on.

describe_coverage(data, questions)["seen"]    # share of held-out (observation, action) pairs that are in the data
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from terrella.core.stats import wilson
from terrella.trust.beliefs import Question
from terrella.trust.nearness import NearestData

QUANTILES = (0.1, 0.5, 0.9, 0.99)


def describe_coverage(data: NearestData, questions: Sequence[Question], errors: Sequence[float]) -> dict[str, Any]:
    """Counts of the data, nearness of held-out steps to it, and the mean error near and far."""
    pairs = [(question.situation.observation, question.action) for question in questions]
    distances, _ = data.look_up(pairs)
    seen = sum(pair in data.pairs for pair in pairs)
    low, high = wilson(seen, len(pairs))
    far = distances > np.median(distances)
    wrong = np.asarray(errors)
    return {
        "data_pairs": data.different,
        "data_actions": {action: len(steps) for action, steps in sorted(data.steps.items())},
        "held_out_actions": dict(sorted(Counter(question.action for question in questions).items())),
        "actions_never_seen": sorted({question.action for question in questions} - set(data.steps)),
        "seen": {"share": seen / len(pairs), "low": low, "high": high, "n": len(pairs)},
        "distance": {f"{q:g}": float(np.quantile(distances, q)) for q in QUANTILES},
        "error_near": float(wrong[~far].mean()) if (~far).any() else None,
        "error_far": float(wrong[far].mean()) if far.any() else None,
    }
