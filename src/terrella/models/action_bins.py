"""Continuous actions as ids: each number is discretised into bins.

The bins are cut at quantiles of the data. With bins of equal width, one outlier would leave few
bins for ordinary motions.
    bins = ActionBins.fit(actions, 16)
    ids = bins.write([0.5, -1.0])
    bins.read(ids)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ActionBins:
    """For each dimension of an action: the edges between its bins and a centre for each bin."""

    edges: tuple[tuple[float, ...], ...]
    centres: tuple[tuple[float, ...], ...]

    @classmethod
    def fit(cls, actions: NDArray[np.float64], bins: int) -> ActionBins:
        """Fit bins to actions [N, A].

        Frequent values get their own bin, so there may be fewer bins than requested.
        """
        edges, centres = [], []
        for column in np.asarray(actions, float).T:
            cuts = np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1]))
            edges.append(tuple(map(float, cuts)))
            centres.append(_bin_centres(column, cuts))
        return cls(tuple(edges), tuple(centres))

    @classmethod
    def uniform(cls, ranges: NDArray[np.float64], bins: int) -> ActionBins:
        """Bins of equal width between a least and a greatest value of each dimension [A, 2]."""
        borders = [np.linspace(low, high, bins + 1) for low, high in np.asarray(ranges, float)]
        centres = [(each[1:] + each[:-1]) / 2 for each in borders]
        return cls(
            tuple(tuple(map(float, each[1:-1])) for each in borders),
            tuple(tuple(map(float, each)) for each in centres),
        )

    @property
    def size(self) -> int:
        """Number of dimensions of an action."""
        return len(self.edges)

    @property
    def bins(self) -> int:
        """Largest number of bins of any dimension: ids of dimension k begin at k times this."""
        return max(len(column) for column in self.centres)

    def write(self, action: Sequence[float]) -> list[int]:
        """Ids of an action: one per dimension, each dimension with its own range of ids."""
        return [
            dimension * self.bins + number for dimension, number in enumerate(self.numbers(action))
        ]

    def numbers(self, action: Sequence[float]) -> list[int]:
        """The number of each dimension's bin, counted from 0 in every dimension."""
        return [
            int(np.searchsorted(cuts, number, side="right"))
            for number, cuts in zip(action, self.edges, strict=True)
        ]

    def read(self, ids: Sequence[int]) -> list[float]:
        """The bin centre of each id."""
        return [
            self.centres[dimension][token - dimension * self.bins]
            for dimension, token in enumerate(ids)
        ]


def _bin_centres(column: NDArray[np.float64], cuts: NDArray[np.float64]) -> tuple[float, ...]:
    """The median of the values in each bin; the middle of its edges where a bin is empty."""
    borders = [column.min(), *cuts, column.max()]
    bin_of_value = np.searchsorted(cuts, column, side="right")
    centres = []
    for index in range(len(cuts) + 1):
        values = column[bin_of_value == index]
        middle = (borders[index] + borders[index + 1]) / 2
        centres.append(float(np.median(values)) if len(values) else middle)
    return tuple(centres)
