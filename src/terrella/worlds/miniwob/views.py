"""What a model is shown of a page: the whole tree, or a short flat list of what matters.

VIEWS["compact"](nodes) -> nodes without structure, with short names
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from terrella.verify.tree import Node

SHORT = 80
KEPT = (
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
"""Properties that a short view keeps; places on the screen are not among them."""
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
    "task", "button", "textbox", "text", "link", "checkbox", "radio", "combobox", "option", "tab", "clickable", "label",
    "rect", "circle", "polygon", "menuitem", "heading", "cell", "box", "image", "path", "line", "listitem", "listbox",
)  # fmt: skip
WORDS = (
    *(f'] {role} "' for role in ROLES), '\ntext "', '\n[', '\\"', ' value="', ' checked', ' selected', ' focused',
    ' fill="', ' size="', ' color="', ' class="', "click ", "type ", "select ", "scroll down", "scroll up",
    "press Enter", "back", "stop", "Click", "Enter", "Select", "Submit", "Username", "Password", "Login",
    " the ", " and ", " button", " text", " field", " link", " into ", " press ", " username", " password",
    " submit", " check",
)  # fmt: skip
"""Worth a token each in a small vocabulary."""


def whole(nodes: Sequence[Node]) -> list[Node]:
    """The tree as it is."""
    return list(nodes)


def compact(nodes: Sequence[Node]) -> list[Node]:
    """Without structure, places and the ends of long texts."""
    return [
        replace(
            node,
            depth=0,
            name=node.name if node.role == "task" else node.name[:SHORT],
            properties=tuple((key, value[:SHORT]) for key, value in node.properties if key in KEPT),
        )
        for node in nodes
        if node.name or node.properties or node.role not in STRUCTURE
    ]


VIEWS: dict[str, Callable[[Sequence[Node]], list[Node]]] = {"compact": compact, "tree": whole}
