"""How well the training data of a world model covers the steps that an agent will take.

`seen` is the share of held-out (observation, action) pairs that occur in the data.
    describe_coverage(data, queries, errors)["seen"]["share"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from terrella.core.predictive import Query
from terrella.core.stats import wilson
from terrella.trust.nearness import NearestData

QUANTILES = (0.1, 0.5, 0.9, 0.99)


def describe_coverage(
    data: NearestData, queries: Sequence[Query], errors: Sequence[float]
) -> dict[str, Any]:
    """Size of the data, distances of held-out steps to it, and the mean error near and far."""
    pairs = [(query.situation.observation, query.action) for query in queries]
    distances, _ = data.look_up(pairs)
    seen = sum(pair in data.pairs for pair in pairs)
    low, high = wilson(seen, len(pairs))
    far = distances > np.median(distances)
    wrong = np.asarray(errors)
    return {
        "data_pairs": data.unique_pairs,
        "data_actions": {action: len(steps) for action, steps in sorted(data.steps.items())},
        "held_out_actions": dict(sorted(Counter(query.action for query in queries).items())),
        "actions_never_seen": sorted({query.action for query in queries} - set(data.steps)),
        "seen": {"share": seen / len(pairs), "low": low, "high": high, "n": len(pairs)},
        "distance": {f"{q:g}": float(np.quantile(distances, q)) for q in QUANTILES},
        "error_near": float(wrong[~far].mean()) if (~far).any() else None,
        "error_far": float(wrong[far].mean()) if far.any() else None,
    }
