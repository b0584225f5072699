"""Continuous actions as ids: each number falls into one of so many bins, cut at quantiles of the data.

Quantiles, not equal widths between minimum and maximum: one outlier would otherwise leave ordinary motions few bins.
    bins = ActionBins.fit(actions, 16); ids = bins.write([0.5, -1.0]); bins.read(ids)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ActionBins:
    """Per number of an action: the edges between its bins, and a value that stands for each."""

    edges: tuple[tuple[float, ...], ...]
    centres: tuple[tuple[float, ...], ...]

    @classmethod
    def fit(cls, actions: NDArray[np.float64], bins: int) -> ActionBins:
        """From actions [N, A]. Values that occur often get a bin of their own; there may be fewer bins than asked."""
        edges, centres = [], []
        for column in np.asarray(actions, float).T:
            cuts = np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1]))
            inside = [column[np.searchsorted(cuts, column, side="right") == number] for number in range(len(cuts) + 1)]
            borders = [column.min(), *cuts, column.max()]
            edges.append(tuple(map(float, cuts)))
            centres.append(tuple(float(np.median(x)) if len(x) else (borders[i] + borders[i + 1]) / 2
                                 for i, x in enumerate(inside)))  # fmt: skip
        return cls(tuple(edges), tuple(centres))

    @property
    def size(self) -> int:
        """Numbers of an action."""
        return len(self.edges)

    @property
    def bins(self) -> int:
        """Most bins of any number: ids of number k begin at k times this."""
        return max(len(column) for column in self.centres)

    def write(self, action: Sequence[float]) -> list[int]:
        """Ids of an action, one per number, each in a range of its own."""
        return [place * self.bins + int(np.searchsorted(cuts, number, side="right"))
                for place, (number, cuts) in enumerate(zip(action, self.edges, strict=True))]  # fmt: skip

    def read(self, ids: Sequence[int]) -> list[float]:
        """The value that stands for each id."""
        return [self.centres[place][found - place * self.bins] for place, found in enumerate(ids)]
