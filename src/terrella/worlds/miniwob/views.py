"""Views of a page for a model: the whole tree, or a short flat list of its main elements.

VIEWS["compact"](nodes)  # nodes without structure, with short names
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from terrella.verify.tree import Node

MAX_TEXT = 80
COMPACT_PROPERTIES = (
    "value",
    "multiline",
    "checked",
    "selected",
    "focused",
    "fill",
    "size",
    "color",
    "class",
    "readonly",
    "disabled",
    "placeholder",
)
"""Properties that the compact view keeps; positions on the screen are not among them."""
STRUCTURE = (
    "list",
    "table",
    "row",
    "form",
    "main",
    "navigation",
    "region",
    "group",
    "tablist",
    "tree",
    "menu",
    "article",
)

ROLES = (
    "task",
    "button",
    "textbox",
    "text",
    "link",
    "checkbox",
    "radio",
    "combobox",
    "option",
    "tab",
    "clickable",
    "label",
    "rect",
    "circle",
    "polygon",
    "menuitem",
    "heading",
    "cell",
    "box",
    "image",
    "path",
    "line",
    "listitem",
    "listbox",
)
VOCABULARY = (
    *(f'] {role} "' for role in ROLES),
    '\ntext "',
    "\n[",
    '\\"',
    ' value="',
    " checked",
    " selected",
    " focused",
    ' fill="',
    ' size="',
    ' color="',
    ' class="',
    "click ",
    "type ",
    "select ",
    "scroll down",
    "scroll up",
    "press Enter",
    "back",
    "stop",
    "Click",
    "Enter",
    "Select",
    "Submit",
    "Username",
    "Password",
    "Login",
    " the ",
    " and ",
    " button",
    " text",
    " field",
    " link",
    " into ",
    " press ",
    " username",
    " password",
    " submit",
    " check",
)
"""Frequent texts that get a token of their own in a small vocabulary."""


def whole(nodes: Sequence[Node]) -> list[Node]:
    """The tree unchanged."""
    return list(nodes)


def compact(nodes: Sequence[Node]) -> list[Node]:
    """A flat list without structural nodes, positions and the ends of long texts."""
    return [
        _shorten(node)
        for node in nodes
        if node.name or node.properties or node.role not in STRUCTURE
    ]


def _shorten(node: Node) -> Node:
    properties = [
        (key, value[:MAX_TEXT]) for key, value in node.properties if key in COMPACT_PROPERTIES
    ]
    return replace(
        node,
        depth=0,
        name=node.name if node.role == "task" else node.name[:MAX_TEXT],
        properties=tuple(properties),
    )


VIEWS: dict[str, Callable[[Sequence[Node]], list[Node]]] = {"compact": compact, "tree": whole}
