"""Scripts that solve mini-arena tasks: lines of a task file that name elements by role and name.

    click link "Books"
    type textbox "Quantity" = 3
    select combobox "Sort by" = Newest
    goto __SHOPPING__/basket/
    press Enter
    stop 42
A name followed by `#2` means the second such element; a name that ends with `*` is a prefix. The
n-th line is the n-th step.
    next_action(task, nodes, steps, addresses)  # "click 17"
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from terrella.core.errors import WorldError
from terrella.verify.tree import Node
from terrella.worlds.webarena.tasks import WebTask, fill_placeholders

_LINE = re.compile(
    r'(?P<verb>click|type|select) (?P<role>[\w-]+) "(?P<name>[^"]*)"'
    r"(?:#(?P<rank>\d+))?(?: = (?P<text>.*))?"
)


def next_action(
    task: WebTask, nodes: Sequence[Node], steps: int, addresses: Mapping[str, str]
) -> str:
    """The action of the script's next line on this page."""
    if not task.oracle:
        raise WorldError("webarena", f"task {task.task_id} has no expert script")
    line = fill_placeholders(task.oracle[min(steps, len(task.oracle) - 1)], addresses)
    match = _LINE.fullmatch(line)
    if match is None:
        return line
    of_role = [node for node in nodes if node.role == match["role"]]
    matching = [node for node in of_role if node.id and _fits(node, match["name"])]
    rank = int(match["rank"] or 1)
    if len(matching) < rank:
        shown = ", ".join(f'{node.role} "{node.name[:30]}"' for node in of_role)
        raise WorldError(
            "webarena",
            f"task {task.task_id}: no element matches {line!r}",
            f"the page has: {shown[:600]}",
        )
    text = f" {match['text']}" if match["text"] is not None else ""
    return f"{match['verb']} {matching[rank - 1].id}{text}"


def _fits(node: Node, name: str) -> bool:
    return node.name == name or (name.endswith("*") and node.name.startswith(name[:-1]))
