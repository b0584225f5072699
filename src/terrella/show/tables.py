"""Tables as Markdown and as plain text, and the form of a mean with its interval.

Used by reports, cards and the viewer.
    lines = markdown_table(("run", "reward"), [("a", "0.9"), ("b", "0.7")])
    interval_text({"mean": 0.9, "low": 0.85, "high": 0.95})  # "0.900 [0.850, 0.950]"
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Sequence[str]]
_MARKS = re.compile(r"[\\`]|!(?=\[)|\](?=[(\[:])")
"""What begins an escape, code, a picture or the target of a link. Other brackets are only shown."""


def interval_text(metric: Mapping[str, Any]) -> str:
    """Format a mean with its interval; a metric without values is `unknown`."""
    if metric["mean"] is None:
        return "unknown"
    low, high = metric.get("low"), metric.get("high")
    spread = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{metric['mean']:.3f}{spread}"


def markdown_table(header: Sequence[str], rows: Rows) -> list[str]:
    """Return the lines of a table, or nothing without rows; cells are text, as it is written."""
    if not rows:
        return []
    return [_markdown_line(line) for line in (header, ["---"] * len(header), *rows)]


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(markdown_text(str(cell)).replace("|", "\\|") for cell in cells) + " |"


def markdown_text(text: str) -> str:
    """A text on one line of Markdown. What a run says makes no tag, link, picture or code there."""
    line = " ".join(text.splitlines()).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKS.sub(r"\\\g<0>", line)


def text_table(header: Sequence[str], rows: Rows, *, columns: int) -> list[str]:
    """Return the lines of a table in plain text, wrapped to about this many columns."""
    if not rows:
        return []
    table = [header, *rows]
    limit = max(10, columns // len(header) - 2)
    widths = [min(limit, max(len(str(row[n])) for row in table)) for n in range(len(header))]
    return [line for row in table for line in _wrapped_row(row, widths)]


def _wrapped_row(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = []
    for cell, width in zip(row, widths, strict=True):
        cells.append(textwrap.wrap(str(cell), width) or [""])
    lines = []
    for n in range(max(map(len, cells))):
        parts = [cell[n] if n < len(cell) else "" for cell in cells]
        padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    return lines
