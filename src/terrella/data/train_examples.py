"""Training examples in a Parquet file: token ids and masks, as they were made.

write_examples(Path("runs/x/examples.parquet"), examples)
assert read_examples(Path("runs/x/examples.parquet")) == examples
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from terrella.core.integrity import read_hashed, write_hashed
from terrella.core.tokens import TrainExample

SCHEMA = pa.schema(
    {
        "prompt_ids": pa.list_(pa.int32()),
        "completion_ids": pa.list_(pa.int32()),
        "mask": pa.list_(pa.bool_()),
    }
)


def write_examples(path: Path, examples: Sequence[TrainExample]) -> None:
    """Write the examples; the file is whole or absent, its hash lies beside it.

    Columns of numbers are not kept.
    """
    columns = {name: [list(getattr(each, name)) for each in examples] for name in SCHEMA.names}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=SCHEMA), sink)
    write_hashed(path, sink.getvalue().to_pybytes())


def read_examples(path: Path) -> list[TrainExample]:
    """The examples of a file, in order; a damaged file is refused by name."""
    columns = pq.read_table(pa.BufferReader(read_hashed(path)), schema=SCHEMA).to_pydict()
    rows = zip(*(columns[name] for name in SCHEMA.names), strict=True)
    return [
        TrainExample(prompt_ids=tuple(prompt), completion_ids=tuple(ids), mask=tuple(mask))
        for prompt, ids, mask in rows
    ]
