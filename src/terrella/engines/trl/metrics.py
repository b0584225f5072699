"""Metrics of one step that do not depend on the number of processes.

Values are summed over packs and ranks and divided once.
    totals = MetricAccumulator(("reward",))
    totals.add("reward", values)
    totals.gather(accelerator)  # {"reward": 0.4}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class MetricAccumulator:
    """Sums, counts and maxima by name.

    The names are fixed at the start, so that all processes exchange vectors of the same length.
    """

    def __init__(self, means: Sequence[str], largest: Sequence[str] = ()) -> None:
        """`means` are averaged over all values added; of `largest` the maximum is kept."""
        self.sums = dict.fromkeys(means, 0.0)
        self.counts = dict.fromkeys(means, 0)
        self.tops = dict.fromkeys(largest, -math.inf)

    def add(self, name: str, values: Tensor) -> None:
        self.sums[name] += float(values.detach().double().sum())
        self.counts[name] += values.numel()

    def top(self, name: str, values: Tensor) -> None:
        if values.numel():
            self.tops[name] = max(self.tops[name], float(values.detach().max()))

    def gather(self, accelerator: Any, *, keep_empty: bool = True) -> dict[str, float]:
        """Means and maxima over all processes. All processes call it.

        A mean of nothing is nan, or left out; a maximum of nothing is left out.
        """
        local = torch.tensor(
            [*self.sums.values(), *self.counts.values(), *self.tops.values()], dtype=torch.float64
        )
        gathered = accelerator.gather(local.to(accelerator.device)[None]).cpu()
        size = len(self.sums)
        sums = gathered[:, :size].sum(0)
        counts = gathered[:, size : 2 * size].sum(0)
        metrics = {}
        for name, total, count in zip(self.sums, sums, counts, strict=True):
            if count or keep_empty:
                metrics[name] = float(total / count) if count else math.nan
        tops = gathered[:, 2 * size :].amax(0).tolist() if self.tops else []
        for name, top in zip(self.tops, tops, strict=True):
            if top > -math.inf:
                metrics[name] = top
        return metrics
