"""Parser and writer of accessibility trees as text: one node per line, indented by depth.

    [3] textbox "User name" value="kai" focused
`[3]` is the id by which actions refer to the element; it is not part of the page's content.
    nodes = parse(tree.text)
    write(nodes) == tree.text
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

INDENT = "  "
_NODE = re.compile(
    r"^(?P<indent>(?:  )*)(?:\[(?P<id>\d{1,9})\] )?(?P<role>[A-Za-z][\w-]*)(?P<rest>.*)$"
)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PROPERTY = re.compile(r' (?P<key>[a-z][\w-]*)(?:=(?P<value>"(?:[^"\\]|\\.)*"))?')


@dataclass(frozen=True, slots=True)
class Node:
    """One line of a tree."""

    depth: int
    id: int
    """The id by which actions refer to the node; 0 if they cannot."""
    role: str
    name: str
    properties: tuple[tuple[str, str], ...] = ()
    """(key, value) in order; a flag has the value "true"."""

    def get(self, key: str) -> str:
        """The value of a property; empty if the node does not have it."""
        return dict(self.properties).get(key, "")


def quote(text: str) -> str:
    """Quote a text, on one line."""
    return json.dumps(text, ensure_ascii=False)


def write_node(node: Node) -> str:
    mark = f"[{node.id}] " if node.id else ""
    properties = "".join(f" {k}" if v == "true" else f" {k}={quote(v)}" for k, v in node.properties)
    return f"{INDENT * node.depth}{mark}{node.role} {quote(node.name)}{properties}"


def write(nodes: Iterable[Node]) -> str:
    return "\n".join(map(write_node, nodes))


def parse_node(line: str) -> Node:
    """Parse one line; ValueError if it is not a node."""
    match = _NODE.match(line)
    if match is None:
        raise ValueError(f"not a tree node: {line[:60]!r}")
    rest = match["rest"]
    name = ""
    if rest.startswith(' "'):
        quoted = _STRING.match(rest, 1)
        if quoted is None:
            raise ValueError(f"a name without its closing quote: {line[:60]!r}")
        name = json.loads(quoted.group())
        rest = rest[quoted.end() :]
    properties = _parse_properties(rest)
    if len({key for key, _ in properties}) != len(properties):
        raise ValueError(f"a property is given twice: {line[:60]!r}")
    return Node(
        depth=len(match["indent"]) // len(INDENT),
        id=int(match["id"] or 0),
        role=match["role"],
        name=name,
        properties=tuple(properties),
    )


def _parse_properties(text: str) -> list[tuple[str, str]]:
    properties = []
    position = 0
    while position < len(text):
        match = _PROPERTY.match(text, position)
        if match is None:
            raise ValueError(f"not a property of a node: {text[position : position + 40]!r}")
        value = json.loads(match["value"]) if match["value"] else "true"
        properties.append((match["key"], value))
        position = match.end()
    return properties


def parse(text: str) -> list[Node]:
    """Parse a tree into its nodes, in preorder.

    Raises ValueError for a line that is not a node, or a node that is indented without a parent.
    """
    nodes = [parse_node(line) for line in text.split("\n")] if text else []
    deepest = 0
    for node in nodes:
        if node.depth > deepest:
            raise ValueError(
                f"a node without a parent: {node.role} {node.name[:40]!r} at depth {node.depth}"
            )
        deepest = node.depth + 1
    return nodes
