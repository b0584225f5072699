"""Verifier for pages (accessibility trees): scores the difference between two pages.

Nodes are matched from the root down: under a matched parent by role, name and rank among equal
ones, then by role alone (an update). A node that has moved counts as deleted and new. Element ids
are ignored: renumbering is not a change, and `apply(diff(a, b), a)` equals `b` except for ids. A
model may reply with the whole page or with the changes:
    ^[3] value="kai" focused -checked    node 3 gains and loses these properties
    ~[3] button "Undo"                   node 3 is replaced by this
    -[5]                                 node 5 is deleted
    +[3] button "Ok"                     a new node after node 3 (indented by its depth)
    =                                    nothing changes
Example:
    text = write_changes(diff(before, after), before)
    TreeDiff.Config().build().verify(reply, truth, page)
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from terrella.core.config import Configurable
from terrella.core.types import Observation, Verdict, show_text
from terrella.verify.text import refuse_unread
from terrella.verify.tree import Node, parse, parse_node, quote, write_node

NOTHING = "="
NEARLY = 0.95
"""The highest score of a reply that is not the truth."""
_SET = re.compile(
    r' (?:-(?P<lost>[a-z][\w-]*)|(?P<key>[a-z][\w-]*)(?:=(?P<value>"(?:[^"\\]|\\.)*"))?)'
)
_CHANGE = re.compile(
    r"^(?P<kind>[-~+^])(?:\[(?P<id>\d{1,9})\]|@(?P<line>\d{1,6}))(?: (?P<node>.+))?$"
)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes to the nodes of a page, by their index in it."""

    deleted: frozenset[int] = frozenset()
    updated: dict[int, Node] = field(default_factory=dict[int, Node])
    new: tuple[tuple[int, Node], ...] = ()
    """(index of the old node that it follows or -1, node), in order."""

    def __len__(self) -> int:
        return len(self.deleted) + len(self.updated) + len(self.new)


def bare(node: Node) -> Node:
    """The node without its id and with sorted properties: its content only."""
    return replace(node, id=0, properties=tuple(sorted(node.properties)))


def same_page(first: Sequence[Node], second: Sequence[Node]) -> bool:
    """Whether two pages have the same content, apart from ids."""
    return list(map(bare, first)) == list(map(bare, second))


# --- matching -------------------------------------------------------------------------------------


def _children(nodes: Sequence[Node]) -> dict[int, list[int]]:
    """Indices of the children of each node; -1 is the page itself."""
    children: dict[int, list[int]] = {-1: []}
    path: list[int] = []
    for index, node in enumerate(nodes):
        del path[node.depth :]
        children.setdefault(path[-1] if path else -1, []).append(index)
        path.append(index)
    return children


def _pair_children(
    old: Sequence[Node], new: Sequence[Node], a: list[int], b: list[int]
) -> list[tuple[int, int]]:
    """Pair the siblings `a` of the old page with the siblings `b` of the new one.

    First by role, name and rank; then the rest by role, most similar names first.
    """
    unmatched: dict[tuple[str, str], list[int]] = {}
    for index in reversed(a):
        unmatched.setdefault((old[index].role, old[index].name), []).append(index)
    pairs = []
    changed = []
    for index in b:
        same = unmatched.get((new[index].role, new[index].name))
        if same:
            pairs.append((same.pop(), index))
        else:
            changed.append(index)
    by_role: dict[str, list[int]] = {}
    for index in sorted(index for indices in unmatched.values() for index in indices):
        by_role.setdefault(old[index].role, []).append(index)
    for index in changed:
        candidates = by_role.get(new[index].role, [])
        if candidates:
            best = _most_similar_name(old, candidates, new[index].name)
            candidates.remove(best)
            pairs.append((best, index))
    return pairs


def _most_similar_name(nodes: Sequence[Node], candidates: Sequence[int], name: str) -> int:
    """The candidate whose name is most similar; the first of equals."""
    return max(candidates, key=lambda index: words_f1(nodes[index].name, name))


def match(old: Sequence[Node], new: Sequence[Node]) -> list[tuple[int, int]]:
    """Pairs (index in old, index in new) of matched nodes, in page order."""
    old_children, new_children = _children(old), _children(new)
    pairs: list[tuple[int, int]] = []
    parents = [(-1, -1)]
    while parents:
        a, b = parents.pop()
        matched = _pair_children(old, new, old_children.get(a, []), new_children.get(b, []))
        pairs += matched
        parents += matched
    pairs.sort(key=lambda pair: pair[1])
    return _longest_in_order(pairs)


def _longest_in_order(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence that increases on both sides; the other nodes have moved."""
    tails: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for index, (a, _) in enumerate(pairs):
        length = bisect_left(tails, a)
        previous.append(ends[length - 1] if length else -1)
        tails[length : length + 1] = [a]
        ends[length : length + 1] = [index]
    chosen = []
    index = ends[-1] if ends else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = previous[index]
    return chosen[::-1]


# --- difference and its inverse -------------------------------------------------------------------


def diff(old: Sequence[Node], new: Sequence[Node]) -> Changes:
    """The changes that turn `old` into `new`."""
    pairs = match(old, new)
    old_index = {b: a for a, b in pairs}
    updated = {a: bare(new[b]) for a, b in pairs if bare(old[a]) != bare(new[b])}
    added = []
    anchor = -1
    for index, node in enumerate(new):
        if index in old_index:
            anchor = old_index[index]
        else:
            added.append((anchor, bare(node)))
    return Changes(frozenset(range(len(old))) - {a for a, _ in pairs}, updated, tuple(added))


def apply(changes: Changes, old: Sequence[Node]) -> list[Node]:
    """The page after the changes; old nodes keep their ids, new ones get the next free ids."""
    added: dict[int, list[Node]] = {}
    free_id = max((node.id for node in old), default=0) + 1
    for anchor, node in changes.new:
        added.setdefault(anchor, []).append(replace(node, id=free_id))
        free_id += 1
    page = list(added.get(-1, []))
    for index, node in enumerate(old):
        if index in changes.updated and index not in changes.deleted:
            page.append(replace(changes.updated[index], id=node.id))
        elif index not in changes.deleted:
            page.append(node)
        page += added.get(index, [])
    return page


# --- as text --------------------------------------------------------------------------------------


def write_changes(changes: Changes, old: Sequence[Node]) -> str:
    """One line per change, in page order; nodes without an id are named by their line."""
    lines = [(index, 0, f"-{_handle(index, old)}") for index in changes.deleted]
    for index, node in changes.updated.items():
        lines.append((index, 0, _write_update(index, node, old)))
    for anchor, node in changes.new:
        lines.append((anchor, 1, f"+{_handle(anchor, old)} {write_node(node)}"))
    lines.sort(key=lambda line: line[:2])
    return "\n".join(text for _, _, text in lines) or NOTHING


def _write_update(index: int, node: Node, old: Sequence[Node]) -> str:
    """The whole node, or only its properties where nothing else changed."""
    before = bare(old[index])
    if (before.role, before.name, before.depth) != (node.role, node.name, node.depth):
        return f"~{_handle(index, old)} {write_node(node)}"
    was, now = dict(before.properties), dict(node.properties)
    edits = []
    for key, value in now.items():
        if was.get(key) != value:
            edits.append(f" {key}" if value == "true" else f" {key}={quote(value)}")
    edits += [f" -{key}" for key in was if key not in now]
    return f"^{_handle(index, old)}{''.join(edits)}"


def _read_properties(text: str, node: Node) -> Node:
    properties = dict(node.properties)
    position = 0
    while position < len(text):
        setting = _SET.match(text, position)
        if setting is None:
            raise ValueError(f"not a property: {text[position : position + 40]!r}")
        if setting["lost"]:
            properties.pop(setting["lost"], None)
        else:
            properties[setting["key"]] = (
                json.loads(setting["value"]) if setting["value"] else "true"
            )
        position = setting.end()
    return bare(replace(node, properties=tuple(properties.items())))


def _handle(index: int, old: Sequence[Node]) -> str:
    """How a change names a node: its id, or its line where the id is missing or not unique."""
    if index < 0:
        return "[0]"
    own = old[index].id
    return f"[{own}]" if own and sum(node.id == own for node in old) == 1 else f"@{index}"


def read_changes(text: str, old: Sequence[Node]) -> Changes:
    """Parse changes; ValueError for malformed ones and for nodes that do not exist."""
    if text.strip() == NOTHING:
        return Changes()
    index_of_id = {node.id: index for index, node in reversed(list(enumerate(old))) if node.id}
    deleted: set[int] = set()
    updated: dict[int, Node] = {}
    new: list[tuple[int, Node]] = []
    for line in text.strip("\n").split("\n"):
        parsed = _CHANGE.match(line)
        if parsed is None or (parsed["kind"] == "-") != (parsed["node"] is None):
            raise ValueError(f"not a change: {line[:60]!r}")
        index = _node_index(parsed, index_of_id, len(old), new=parsed["kind"] == "+")
        if parsed["kind"] == "+":
            new.append((index, bare(parse_node(parsed["node"]))))
        elif index in deleted or index in updated:
            raise ValueError(f"two changes of one node: {line[:60]!r}")
        elif parsed["kind"] == "-":
            deleted.add(index)
        elif parsed["kind"] == "^":
            updated[index] = _read_properties(f" {parsed['node']}", old[index])
        else:
            updated[index] = bare(parse_node(parsed["node"]))
    return Changes(frozenset(deleted), updated, tuple(new))


def _node_index(
    parsed: re.Match[str], index_of_id: dict[int, int], count: int, *, new: bool
) -> int:
    if parsed["id"] == "0" and new:
        return -1
    index = index_of_id.get(int(parsed["id"]), -1) if parsed["id"] else int(parsed["line"])
    if not 0 <= index < count:
        raise ValueError(f"no such node: {parsed[0][:60]!r}")
    return index


def read_page(text: str, before: Sequence[Node]) -> list[Node]:
    """The page that a reply describes, whole or by its changes; ValueError for other texts."""
    if text[:1] in ("-", "~", "+", "^", NOTHING):
        page = apply(read_changes(text, before), before)
        parse("\n".join(map(write_node, page)))  # a node must have a parent
        return page
    return parse(text)


# --- the verdict ----------------------------------------------------------------------------------


def words_f1(first: str, second: str) -> float:
    """Similarity of two texts: F1 over their words, in any order and case."""
    if first == second:
        return 1.0
    a, b = Counter(first.lower().split()), Counter(second.lower().split())
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 0.0


def likeness(predicted: Node, true: Node) -> float:
    """Similarity of two nodes: 1 for equal ones, 0 for another role or depth.

    In between, a weighted sum over the words of the name and the properties.
    """
    if predicted == true:
        return 1.0
    if predicted.role != true.role or predicted.depth != true.depth:
        return 0.0
    ours, theirs = set(predicted.properties), set(true.properties)
    shared = 2 * len(ours & theirs) / (len(ours) + len(theirs)) if ours or theirs else 1.0
    return NEARLY * (0.7 * words_f1(predicted.name, true.name) + 0.3 * shared)


def credit_updates(predicted: Changes, true: Changes, before: Sequence[Node]) -> float:
    """Credit for updates: how much closer to the truth each brings its node, at most 1 each."""
    total = 0.0
    for index in predicted.updated.keys() & true.updated.keys():
        goal = true.updated[index]
        start, end = likeness(bare(before[index]), goal), likeness(predicted.updated[index], goal)
        total += max(0.0, (end - start) / (1.0 - start)) if start < 1.0 else 0.0
    return total


def credit_new(predicted: Changes, true: Changes) -> float:
    """Credit for new nodes: equal ones are paired first, then the most similar.

    Each true node is used once, and only pairs in page order count.
    """
    goals = list(range(len(true.new)))
    pairs: list[tuple[int, int]] = []
    credit: dict[int, float] = {}
    inexact = []
    for index, addition in enumerate(predicted.new):
        equal = next((goal for goal in goals if true.new[goal] == addition), None)
        if equal is None:
            inexact.append(index)
            continue
        goals.remove(equal)
        pairs.append((equal, index))
        credit[index] = 1.0
    for index in inexact:
        node = predicted.new[index][1]
        scored = [(NEARLY * likeness(node, true.new[goal][1]), -goal) for goal in goals]
        best, goal = max(scored, default=(0.0, 0))
        if best > 0.5:
            goals.remove(-goal)
            pairs.append((-goal, index))
            credit[index] = best
    pairs.sort(key=lambda pair: pair[1])
    return sum(credit[index] for _, index in _longest_in_order(pairs))


def score(predicted: Changes, true: Changes, before: Sequence[Node]) -> tuple[float, float]:
    """(value, F1) of predicted changes.

    The value is 0 for predicting no change and falls with every wrong change; F1 is the usual one.
    """
    shown = credit_updates(predicted, true, before) + credit_new(predicted, true)
    gone = len(predicted.deleted & true.deleted)
    both = len(predicted) + len(true)
    f1 = 2 * (shown + gone) / both if both else 1.0
    claims = len(predicted.updated) + len(predicted.new)
    real = len(true.updated) + len(true.new)
    wrong = claims - shown + len(predicted.deleted - true.deleted)
    # More new nodes than there really are would be alternatives.
    if not len(true) or len(predicted.new) > len(true.new):
        return 0.0, f1
    if not real:
        return (0.0 if wrong else NEARLY * gone / len(true.deleted)), f1
    # Showing the new beside the old is a hedge, so new nodes count in proportion to the fraction
    # of deletions that was predicted.
    done = gone / len(true.deleted) if true.deleted else 1.0
    return NEARLY * max(0.0, shown - wrong) / real * done, f1


class TreeDiff(Configurable):
    """Scores the changes of a reply (a whole page or a list of changes); ids are ignored."""

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the reply's changes to `before` with the true ones."""
        texts = show_text(reply), show_text(truth), show_text(before)
        rejection = refuse_unread(*texts)
        if rejection is not None:
            return rejection
        old = parse(texts[2])
        true = read_page(texts[1], old)
        try:
            page = read_page(texts[0].strip("\r\n"), old)
        except ValueError as error:
            return Verdict.unparsable(f"not a page: {error}")
        if same_page(page, true):
            return Verdict.of(1.0, exact=1.0, f1=1.0)
        value, f1 = score(diff(old, page), diff(old, true), old)
        return Verdict.of(value, exact=0.0, f1=f1)
