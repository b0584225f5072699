"""Accessibility trees as text: one node a line, indented by depth. The one parser and the one writer.

    [3] textbox "User name" value="kai" focused
`[3]` is how actions name the element; it is never part of what the page *is*.
    nodes = parse(tree.text); write(nodes) == tree.text
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

INDENT = "  "
_NODE = re.compile(r"^(?P<indent>(?:  )*)(?:\[(?P<id>\d{1,9})\] )?(?P<role>[A-Za-z][\w-]*)(?P<rest>.*)$")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PROPERTY = re.compile(r' (?P<key>[a-z][\w-]*)(?:=(?P<value>"(?:[^"\\]|\\.)*"))?')


@dataclass(frozen=True, slots=True)
class Node:
    """One line of a tree."""

    depth: int
    id: int
    """How actions name it; 0 when they cannot."""
    role: str
    name: str
    properties: tuple[tuple[str, str], ...] = ()
    """(key, value) in order; a flag has the value "true"."""

    def get(self, key: str) -> str:
        """The value of a property, empty when it has none."""
        return dict(self.properties).get(key, "")


def quote(text: str) -> str:
    """A text on one line, in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def write_node(node: Node) -> str:
    """One line."""
    mark = f"[{node.id}] " if node.id else ""
    properties = "".join(f" {k}" if v == "true" else f" {k}={quote(v)}" for k, v in node.properties)
    return f"{INDENT * node.depth}{mark}{node.role} {quote(node.name)}{properties}"


def write(nodes: Iterable[Node]) -> str:
    """All lines."""
    return "\n".join(map(write_node, nodes))


def parse_node(line: str) -> Node:
    """The node of a line, or ValueError."""
    found = _NODE.match(line)
    if found is None:
        raise ValueError(f"not a tree node: {line[:60]!r}")
    rest, name = found["rest"], ""
    if rest.startswith(' "'):
        quoted = _STRING.match(rest, 1)
        if quoted is None:
            raise ValueError(f"a name without its closing quote: {line[:60]!r}")
        name, rest = json.loads(quoted.group()), rest[quoted.end() :]
    properties, place = [], 0
    while place < len(rest):
        one = _PROPERTY.match(rest, place)
        if one is None:
            raise ValueError(f"not a property of a node: {rest[place : place + 40]!r}")
        properties.append((one["key"], json.loads(one["value"]) if one["value"] else "true"))
        place = one.end()
    if len({key for key, _ in properties}) != len(properties):
        raise ValueError(f"a property is given twice: {line[:60]!r}")
    return Node(len(found["indent"]) // 2, int(found["id"] or 0), found["role"], name, tuple(properties))


def parse(text: str) -> list[Node]:
    """The nodes of a tree in preorder; ValueError for what is not one (a node deeper than its parent's child)."""
    nodes = [parse_node(line) for line in text.split("\n")] if text else []
    deepest = 0
    for node in nodes:
        if node.depth > deepest:
            raise ValueError(f"a node without a parent: {node.role} {node.name[:40]!r} at depth {node.depth}")
        deepest = node.depth + 1
    return nodes
