"""Helpers of the expert scripts: finding elements, quoted words and the next field to fill.

page = PageReader(task, nodes)
page.fill([(page.of("textbox")[0], "kai")])  # a type action, or a click on the submit button
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from terrella.verify.tree import Node

SUBMIT = ("submit", "login", "search", "ok", "confirm")


class PageReader:
    """A page (its whole tree) and its task, as a script reads them."""

    def __init__(self, task: str, nodes: Sequence[Node]) -> None:
        self.task = task
        self.nodes = [node for node in nodes if node.role != "task"]
        self.quoted = re.findall(r'"([^"]+)"', task)

    def of(self, *roles: str) -> list[Node]:
        """All elements with one of these roles."""
        return [node for node in self.nodes if node.role in roles]

    def named(self, name: str, roles: Sequence[str]) -> Node:
        """The first element with that name; LookupError when there is none."""
        for node in self.of(*roles):
            if node.name == name and node.id:
                return node
        raise self.unexpected()

    def unexpected(self) -> LookupError:
        """The error for a page that does not look as the script expects."""
        return LookupError(f"the script finds nothing to do for: {self.task[:80]}")

    def click(self, node: Node) -> str:
        return f"click {node.id}"

    def submit(self) -> str:
        """Click the button that finishes the task."""
        for node in self.of("button", "clickable"):
            if node.name.lower() in SUBMIT:
                return self.click(node)
        raise self.unexpected()

    def fill(self, pairs: Iterable[tuple[Node, str]]) -> str:
        """Type the first text that its field does not hold yet; submit when all do."""
        for field, text in pairs:
            shown = field.get("value")
            is_masked = bool(shown) and set(shown) == {"*"}
            if shown != text and not (is_masked and len(shown) == len(text)):
                return f"type {field.id} {text}"
        return self.submit()


Script = Callable[[PageReader], str]
"""Returns the next action on a page."""
