"""Per-instance rows behind a published number: compressed JSON that is the same on every machine.

A number that stands on a page can be computed again from its rows (`benchmarks/tables.py
--recompute`). The gzip header holds no time and no name, so equal rows give equal files.
    write_rows(Path("results/rows/spa_sokoban.json.gz"), {"arms": {...}})
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from terrella.core.files import write_atomic
from terrella.core.types import canonical_json
from terrella.core.untrusted import parse_json, read_gzip


def write_rows(path: Path, rows: Mapping[str, Any]) -> None:
    """Write the rows; the file is complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, gzip.compress(canonical_json(rows).encode(), mtime=0))


def read_rows(path: Path) -> dict[str, Any]:
    """Read what `write_rows` wrote."""
    return dict(parse_json(read_gzip(path), str(path)))
