"""The columns of a learner's examples: checked, and those that every loss reads are added.

Both engines' learners use this, so that they refuse the same data.
    rows = with_columns(data, ["advantage"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from terrella.algos.named_losses import EXAMPLE, WEIGHT
from terrella.core.errors import EngineError
from terrella.core.tokens import TrainExample


def column_names(data: Sequence[TrainExample]) -> frozenset[str]:
    """The columns that all examples have."""
    names = [frozenset(example.columns) for example in data]
    return frozenset.intersection(*names) if names else frozenset()


def with_columns(data: Sequence[TrainExample], names: Sequence[str]) -> list[TrainExample]:
    """The examples with these columns, the index of the example, and a weight for each token."""
    return [_with_columns(example, names, index) for index, example in enumerate(data)]


def _with_columns(example: TrainExample, names: Sequence[str], index: int) -> TrainExample:
    length = len(example.completion_ids)
    columns = {name: example.columns[name] for name in names}
    columns.setdefault(WEIGHT, [1.0] * length)
    for name, values in {"mask": example.mask, **columns}.items():
        if len(values) != length:
            raise EngineError(
                "learner",
                f"example {index} has {length} completion tokens and {len(values)} of {name}",
            )
    if not example.prompt_ids:
        raise EngineError("learner", f"example {index} has no prompt to predict from")
    return replace(example, columns={**columns, EXAMPLE: [float(index)] * length})
