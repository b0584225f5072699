"""The published form of page changes (RLVR-World): three lists of elements, and their verifier.

    New items:
    [7] button 'Ok'
    Deleted items:
    None
    Updated items:
    [3] textbox 'Name' value: kai
An item is `[id] role 'name' key: value ...`, as the page shows the element after the step; a
deleted one as it was before. The lists say nothing about places, so pages are compared without
depth, and new elements by their order alone. A deleted or updated item must name an element of the
page by its id; elements without one of their own are named by all that is shown of them, and equal
ones are not told apart. `None` is an empty list.
    text = write_sections(parse(before), parse(after))
    PageSections.Config().build().verify(reply, truth, page)
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Sequence, Set
from dataclasses import replace

from terrella.core.config import Configurable
from terrella.core.types import Observation, Verdict, show_text
from terrella.verify.text import refuse_unread
from terrella.verify.tree import Node, parse, write_node
from terrella.verify.tree_diff import (
    SPARE_LINES,
    Changes,
    apply,
    bare,
    diff,
    read_page,
    score,
)

NEW, DELETED, UPDATED = "New items:", "Deleted items:", "Updated items:"
HEADERS = (NEW, DELETED, UPDATED)
NONE = "None"
_ITEM = re.compile(
    r"^(?:\[(?P<id>\d{1,9})\] )?(?P<role>[A-Za-z][\w-]*) '(?P<name>(?:[^'\\]|\\.)*)'(?P<rest>.*)$"
)
_PROPERTY = re.compile(r" (?P<key>[a-z][\w-]*): '(?P<value>(?:[^'\\]|\\.)*)'")
_ESCAPES = {"\\\\": "\\", "\\'": "'", "\\n": "\n"}


# --- as text --------------------------------------------------------------------------------------


def write_item(node: Node) -> str:
    """An element on one line; its depth is left out."""
    mark = f"[{node.id}] " if node.id else ""
    properties = "".join(f" {key}: '{_escape(value)}'" for key, value in sorted(node.properties))
    return f"{mark}{node.role} '{_escape(node.name)}'{properties}"


def write_sections(old: Sequence[Node], new: Sequence[Node]) -> str:
    """What turns one page into another, as three lists, each in page order."""
    changes, named = listed(old, new), _named(old)
    updated = [replace(node, id=old[index].id) for index, node in sorted(changes.updated.items())]
    lists = {
        NEW: [node for _, node in changes.new],
        DELETED: [
            old[index] if index in named else bare(old[index]) for index in sorted(changes.deleted)
        ],
        UPDATED: updated,
    }
    return "\n".join(
        line
        for header, nodes in lists.items()
        for line in (header, *(map(write_item, nodes) if nodes else (NONE,)))
    )


def listed(old: Sequence[Node], new: Sequence[Node]) -> Changes:
    """The changes between two pages, as far as the lists can say them: without places.

    An element without an id cannot be named by its new text, so its update is a deleted element
    and a new one.
    """
    changes = diff(_flat_page(old), _flat_page(new))
    named = _named(old)
    unnamed = {index: node for index, node in changes.updated.items() if index not in named}
    added = sorted([*changes.new, *unnamed.items()], key=lambda addition: addition[0])
    return Changes(
        _first_of_equal(changes.deleted | unnamed.keys(), old),
        {index: node for index, node in changes.updated.items() if index in named},
        tuple((-1, node) for _, node in added),
    )


def _first_of_equal(deleted: Set[int], old: Sequence[Node]) -> frozenset[int]:
    """Deleted elements; of equal ones without an id of their own, the first of the page.

    The lists cannot say which of them is gone.
    """
    named = _named(old)
    wanted = Counter(_flat(old[index]) for index in deleted if index not in named)
    first = {index for index in deleted if index in named}
    for index, node in enumerate(old):
        if index not in named and wanted[_flat(node)]:
            wanted[_flat(node)] -= 1
            first.add(index)
    return frozenset(first)


def _flat_page(nodes: Sequence[Node]) -> list[Node]:
    return [replace(node, depth=0) for node in nodes]


def read_item(line: str) -> Node:
    """Parse one item; ValueError if it is none."""
    found = _ITEM.match(line.strip())
    if found is None:
        raise ValueError(f"not an item: {line[:60]!r}")
    properties: dict[str, str] = {}
    position, rest = 0, found["rest"]
    while position < len(rest):
        each = _PROPERTY.match(rest, position)
        if each is None or each["key"] in properties:
            raise ValueError(f"not a property: {rest[position : position + 40]!r}")
        properties[each["key"]] = _unescape(each["value"])
        position = each.end()
    number = int(found["id"] or 0)
    return Node(0, number, found["role"], _unescape(found["name"]), tuple(properties.items()))


def read_sections(text: str, old: Sequence[Node]) -> Changes:
    """Parse three lists, each of them once; ValueError for anything else."""
    items = _items_by_header(text)
    places = _Places(old)
    deleted = frozenset(places.find(read_item(line)) for line in items[DELETED])
    updated = {}
    for line in items[UPDATED]:
        node = read_item(line)
        index = places.find(node)
        if _flat(old[index]) != bare(node):  # what stays the same is no change
            updated[index] = bare(node)
    new = tuple((-1, bare(read_item(line))) for line in items[NEW])
    return Changes(_first_of_equal(deleted, old), updated, new)


def read_imagined(text: str, old: Sequence[Node]) -> list[Node]:
    """The page that a reply describes; new elements go to its end, where nothing else is known."""
    if not is_sections(text):
        return read_page(text, old)
    changes = read_sections(text, old)
    updated = {i: replace(node, depth=old[i].depth) for i, node in changes.updated.items()}
    new = tuple((len(old) - 1, node) for _, node in changes.new)
    page = apply(Changes(changes.deleted, updated, new), old)
    parse("\n".join(map(write_node, page)))  # a node must have a parent
    return page


def is_sections(text: str) -> bool:
    """Whether a reply is in this form, right or wrong."""
    return text.lstrip().startswith(HEADERS)


def _items_by_header(text: str) -> dict[str, list[str]]:
    items: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.strip().split("\n"):
        header = line.strip()
        if header in HEADERS:
            if header in items:
                raise ValueError(f"a list is given twice: {header}")
            lines = items[header] = []
        elif lines is None:
            raise ValueError(f"not one of the three lists: {line[:60]!r}")
        elif header:
            lines.append(header)
    missing = [header for header in HEADERS if header not in items]
    if missing:
        raise ValueError(f"a list is missing: {missing[0]}")
    return {header: [] if lines == [NONE] else lines for header, lines in items.items()}


class _Places:
    """Finds the elements of a page that items name; each of them once."""

    def __init__(self, old: Sequence[Node]) -> None:
        named = _named(old)
        self.used: set[int] = set()
        self.by_item: defaultdict[tuple[int, Node | None], deque[int]] = defaultdict(deque)
        """Places in page order, by what an item must say to name them."""
        for index, node in enumerate(old):
            if index in named:
                self.by_item[node.id, None].append(index)
                continue
            for number in {0, node.id}:
                self.by_item[number, _flat(node)].append(index)

    def find(self, item: Node) -> int:
        """The index of an element: by its id, or by all that is shown where it has none alone."""
        for key in ((item.id, None), (item.id, _flat(item))):
            places = self.by_item[key]
            while places:  # a place that was taken by its other key is passed over once
                index = places.popleft()
                if index not in self.used:
                    self.used.add(index)
                    return index
        raise ValueError(f"no such element, or named twice: {write_item(item)[:60]!r}")


def _named(old: Sequence[Node]) -> set[int]:
    """The elements of a page that have an id of their own."""
    counts = Counter(node.id for node in old)
    return {index for index, node in enumerate(old) if node.id and counts[node.id] == 1}


def _flat(node: Node) -> Node:
    return replace(bare(node), depth=0)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")


def _unescape(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0][1:]), text)


# --- the verdict ----------------------------------------------------------------------------------


class PageSections(Configurable):
    """Scores three lists of changes, or a whole page, without regard to places and ids.

    The value is that of `TreeDiff`, which does not pay for hedging; the published reward is `f1`.
    """

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the reply's changes to `before` with the true ones."""
        texts = show_text(reply), show_text(truth), show_text(before)
        rejection = refuse_unread(*texts)
        if rejection is not None:
            return rejection
        old, after = parse(texts[2]), parse(texts[1])
        most = len(old) + len(after) + SPARE_LINES
        if texts[0].count("\n") > most:
            return Verdict.unparsable(f"more than {most} lines")
        text = texts[0].strip("\r\n")
        try:
            predicted = (
                read_sections(text, old) if is_sections(text) else listed(old, read_page(text, old))
            )
        except ValueError as error:
            return Verdict.unparsable(f"not lists of changes: {error}")
        true = listed(old, after)
        if predicted == true:
            return Verdict.of(1.0, exact=1.0, f1=1.0)
        value, f1 = score(predicted, true, _flat_page(old))
        return Verdict.of(value, exact=0.0, f1=f1)
