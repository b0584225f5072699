"""Scripts that solve mini-arena tasks: lines of a task file, each naming an element by role and name.

    click link "Books"          type textbox "Quantity" = 3          select combobox "Sort by" = Newest
    goto __SHOPPING__/basket/   press Enter                          stop 42
A name ends with `#2` for the second such element. The n-th line is the n-th step.
    next_action(task, nodes, done, places) -> "click 17"
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from terrella.core.errors import WorldError
from terrella.verify.tree import Node
from terrella.worlds.webarena.tasks import WebTask

_LINE = re.compile(
    r'(?P<verb>click|type|select) (?P<role>[\w-]+) "(?P<name>[^"]*)"(?:#(?P<rank>\d+))?(?: = (?P<text>.*))?'
)


def next_action(task: WebTask, nodes: Sequence[Node], done: int, places: Mapping[str, str]) -> str:
    """The action of the script's next line on this page."""
    if not task.oracle:
        raise WorldError("webarena", f"task {task.task_id} has no script")
    line = task.oracle[min(done, len(task.oracle) - 1)]
    for name, address in sorted(places.items(), key=lambda pair: -len(pair[0])):
        line = line.replace(name, address)
    found = _LINE.fullmatch(line)
    if found is None:
        return line
    matching = [node for node in nodes if node.role == found["role"] and node.id and _fits(node, found["name"])]
    rank = int(found["rank"] or 1)
    if len(matching) < rank:
        shown = ", ".join(f'{n.role} "{n.name[:30]}"' for n in nodes if n.role == found["role"])
        raise WorldError("webarena", f"task {task.task_id}: nothing fits {line!r}", f"there are: {shown[:600]}")
    text = f" {found['text']}" if found["text"] is not None else ""
    return f"{found['verb']} {matching[rank - 1].id}{text}"


def _fits(node: Node, name: str) -> bool:
    return node.name == name or (name.endswith("*") and node.name.startswith(name[:-1]))
