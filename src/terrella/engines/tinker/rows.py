"""Rows of one shape for an endpoint: same length, every position counted, a fixed number per call.

Endpoints differ in how they reduce a loss: some add over tokens and rows, some take means. On rows
of one shape whose untrained positions have advantage 0, all of these differ by one constant, so
no row is weighed more than another. Fixed shapes also spare a server that compiles.
    rows = PaddedRows(examples, pad_tokens=64, batch_rows=32)
    logprobs_M = rows.at_targets(columns)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from terrella.core.errors import EngineError
from terrella.core.tokens import TrainExample

Columns = list[list[float]]
"""One value per position of each row."""


class Row(NamedTuple):
    """One sequence with its next tokens, as Tinker's `Datum`: already shifted."""

    input_ids: list[int]
    target_ids: list[int]
    logprobs: list[float] = []
    advantages: list[float] = []


class PaddedRows:
    """The rows of some examples. M is the number of their targets, in order."""

    def __init__(
        self, examples: Sequence[TrainExample], *, pad_tokens: int, batch_rows: int
    ) -> None:
        """`pad_tokens` 0 leaves the rows as long as they are."""
        self.batch_rows = batch_rows
        self.examples = examples
        sequences = [[*each.prompt_ids, *each.completion_ids] for each in examples]
        self.length = _padded_length(max(map(len, sequences)) - 1, pad_tokens)
        self.rows: list[tuple[list[int], list[int]]] = []
        self.spots: list[list[int]] = []
        """Positions of each example's targets in its row."""
        for example, ids in zip(examples, sequences, strict=True):
            if not example.prompt_ids:
                raise EngineError("tinker", "an example has no prompt to predict from")
            empty = [0] * (self.length - len(ids) + 1 if pad_tokens else 0)
            self.rows.append((ids[:-1] + empty, ids[1:] + empty))
            first = len(example.prompt_ids) - 1
            self.spots.append([first + at for at, target in enumerate(example.mask) if target])
        if pad_tokens:
            missing = -len(self.rows) % batch_rows
            self.rows += [([0] * self.length, [0] * self.length)] * missing

    def column(self, name: str) -> Tensor:
        """[M], a named column of the examples at their targets."""
        values = [
            value
            for example in self.examples
            for value, target in zip(example.columns[name], example.mask, strict=True)
            if target
        ]
        return torch.tensor(values)

    def at_targets(self, columns: Sequence[Sequence[float]]) -> Tensor:
        """[M], from values at all positions of the rows."""
        pairs = zip(self.spots, columns[: len(self.spots)], strict=True)
        return torch.tensor([column[spot] for spots, column in pairs for spot in spots])

    def everywhere(self, values_M: Tensor) -> Columns:
        """Values at all positions, 0 where there is no target."""
        columns = [[0.0] * len(ids) for ids, _ in self.rows]
        values = iter(values_M.tolist())
        for spots, column in zip(self.spots, columns, strict=False):
            for spot in spots:
                column[spot] = next(values)
        return columns

    def calls(
        self, logprobs: Columns | None = None, advantages: Columns | None = None
    ) -> Iterator[list[Row]]:
        """The rows of each call."""
        for start in range(0, len(self.rows), self.batch_rows):
            yield [
                Row(
                    *self.rows[index],
                    logprobs[index] if logprobs else [],
                    advantages[index] if advantages else [],
                )
                for index in range(start, min(start + self.batch_rows, len(self.rows)))
            ]


def _padded_length(longest: int, pad_tokens: int) -> int:
    length = pad_tokens or longest
    while length < longest:
        length *= 2
    return length
