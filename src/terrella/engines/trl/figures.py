"""Figures of one step that mean the same for any number of processes: sums over packs and ranks, then one division.

    totals = Totals(("entropy", "reward")); totals.add("reward", values); totals.means(accelerator) -> {"reward": 0.4}
"""  # fmt: skip

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Totals:
    """Names are fixed at the start, so that all processes exchange the same vector."""

    def __init__(self, means: Sequence[str], largest: Sequence[str] = ()) -> None:
        """`means` are averaged over everything added, of `largest` the largest is kept."""
        self.sums = dict.fromkeys(means, 0.0)
        self.counts = dict.fromkeys(means, 0)
        self.tops = dict.fromkeys(largest, -math.inf)

    def add(self, name: str, values: Tensor) -> None:
        """Every value counts once."""
        self.sums[name] += float(values.detach().double().sum())
        self.counts[name] += values.numel()

    def top(self, name: str, values: Tensor) -> None:
        """Only the largest counts."""
        if values.numel():
            self.tops[name] = max(self.tops[name], float(values.detach().max()))

    def gather(self, accelerator: Any) -> dict[str, float]:
        """Means and largest values over all processes; nan where nothing was added. All processes call this."""
        mine = torch.tensor([*self.sums.values(), *self.counts.values(), *self.tops.values()], dtype=torch.float64)
        everyone = accelerator.gather(mine.to(accelerator.device)[None]).cpu()
        size = len(self.sums)
        sums, counts = everyone[:, :size].sum(0), everyone[:, size : 2 * size].sum(0)
        found = {name: float(s / c) if c else math.nan for name, s, c in zip(self.sums, sums, counts, strict=True)}
        tops = everyone[:, 2 * size :].amax(0).tolist() if self.tops else []
        return found | {name: top for name, top in zip(self.tops, tops, strict=True) if top > -math.inf}
