"""How a script reads a page: the elements by role and name, the quoted words of the task, the next field to fill.

page = PageReader(task, nodes); page.of("button"); page.fill([(field, "kai")])  # a type action, or the submit button
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from terrella.verify.tree import Node

SUBMIT = ("submit", "login", "search", "ok", "confirm")


class PageReader:
    """A page and its task."""

    def __init__(self, task: str, nodes: Sequence[Node]) -> None:
        """`nodes` is the whole tree."""
        self.task, self.nodes = task, [node for node in nodes if node.role != "task"]
        self.quoted = re.findall(r'"([^"]+)"', task)

    def of(self, *roles: str) -> list[Node]:
        """All elements with one of these roles."""
        return [node for node in self.nodes if node.role in roles]

    def named(self, name: str, roles: Sequence[str]) -> Node:
        """The first element of that name; LookupError when there is none."""
        for node in self.of(*roles):
            if node.name == name and node.id:
                return node
        raise self.lost()

    def lost(self) -> LookupError:
        """The page is not as the script expects it."""
        return LookupError(f"nothing to do here for: {self.task[:80]}")

    def click(self, node: Node) -> str:
        """A click on it."""
        return f"click {node.id}"

    def submit(self) -> str:
        """The button that finishes the task."""
        for node in self.of("button", "clickable"):
            if node.name.lower() in SUBMIT:
                return self.click(node)
        raise self.lost()

    def fill(self, pairs: Iterable[tuple[Node, str]]) -> str:
        """Type the first text that is not in its field yet; when all are, submit."""
        for field, text in pairs:
            shown = field.get("value")
            is_masked = bool(shown) and set(shown) == {"*"}
            if shown != text and not (is_masked and len(shown) == len(text)):
                return f"type {field.id} {text}"
        return self.submit()


Script = Callable[[PageReader], str]
