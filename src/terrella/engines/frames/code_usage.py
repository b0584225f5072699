"""Which codes a tokenizer uses while it trains: how many, and how evenly.

usage = CodeUsage(codes=1000)
usage.add("frames", ids)
usage.take().metrics()      # over all ranks, since the last call
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from terrella.engines.ranks import summed


@dataclass(frozen=True)
class Usage:
    """Codes in use by kind of frame (`frames`, `context`)."""

    used: dict[str, int]
    perplexity: dict[str, float]
    """Their number if all codes are used equally often, 1 if there is only one."""

    def metrics(self) -> dict[str, float]:
        rows = {f"codes_{name}": float(count) for name, count in self.used.items()}
        return rows | {f"perplexity_{name}": value for name, value in self.perplexity.items()}


class CodeUsage:
    """Counts of each code since they were last taken."""

    def __init__(self, codes: int) -> None:
        self.codes = codes
        self.counts: dict[str, Tensor] = {}

    def add(self, name: str, ids: Tensor) -> None:
        counts = torch.bincount(ids.flatten(), minlength=self.codes)
        known = self.counts.get(name)
        self.counts[name] = counts if known is None else known + counts

    def take(self) -> Usage:
        """The usage on all ranks; counting begins again."""
        used, perplexity = {}, {}
        for name in sorted(self.counts):
            counts = summed(self.counts[name]).double()
            used[name] = int((counts > 0).sum())
            shares = counts[counts > 0] / counts.sum()
            perplexity[name] = float(torch.exp(-(shares * shares.log()).sum()))
        self.counts = {}
        return Usage(used, perplexity)
