"""Verifier for pages (accessibility trees): scores the difference between two pages.

Nodes are matched from the root down (`tree_match.py`): under a matched parent by role, name and
rank among equal ones, then by role alone (an update). A node that has moved counts as deleted and
new. Element ids are ignored: renumbering is not a change, and `apply(diff(a, b), a)` equals `b`
except for ids. A model may reply with the whole page or with the changes:
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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from terrella.core.config import Configurable
from terrella.core.types import Observation, Verdict, show_text
from terrella.verify.text import refuse_unread
from terrella.verify.tree import Node, parse, parse_node, quote, write_node
from terrella.verify.tree_match import Candidates, NameWords, longest_in_order, match

NOTHING = "="
NEARLY = 0.95
"""The highest score of a reply that is not the truth."""
SPARE_LINES = 20
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
    return Node(node.depth, 0, node.role, node.name, tuple(sorted(node.properties)))


def same_page(first: Sequence[Node], second: Sequence[Node]) -> bool:
    """Whether two pages have the same content, apart from ids."""
    return list(map(bare, first)) == list(map(bare, second))


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


def likeness(predicted: Node, true: Node, words: NameWords | None = None) -> float:
    """Similarity of two nodes: 1 for equal ones, 0 for another role or depth.

    In between, a weighted sum over the words of the name and the properties.
    """
    words = words or NameWords()
    if predicted == true:
        return 1.0
    if predicted.role != true.role or predicted.depth != true.depth:
        return 0.0
    ours, theirs = set(predicted.properties), set(true.properties)
    shared = 2 * len(ours & theirs) / (len(ours) + len(theirs)) if ours or theirs else 1.0
    return NEARLY * (0.7 * words.f1(predicted.name, true.name) + 0.3 * shared)


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

    Each true node is used once, and only pairs in page order count. As in `tree_match`, a node is
    compared with as many of the true ones near its place as the limit allows.
    """
    equal: dict[tuple[int, Node], list[int]] = {}
    for goal in reversed(range(len(true.new))):
        equal.setdefault(true.new[goal], []).append(goal)
    pairs: list[tuple[int, int]] = []
    credit: dict[int, float] = {}
    inexact = []
    for index, addition in enumerate(predicted.new):
        same = equal.get(addition)
        if same:
            pairs.append((same.pop(), index))
            credit[index] = 1.0
        else:
            inexact.append(index)
    goals = sorted(goal for left in equal.values() for goal in left)
    for goal, index, value in _pair_similar(predicted, inexact, true, goals):
        pairs.append((goal, index))
        credit[index] = value
    pairs.sort(key=lambda pair: pair[1])
    return sum(credit[index] for _, index in longest_in_order(pairs))


def _pair_similar(
    predicted: Changes, inexact: Sequence[int], true: Changes, goals: Sequence[int]
) -> list[tuple[int, int, float]]:
    """(true node, predicted node, credit) of new nodes that are similar, but not equal."""
    words = NameWords()
    window = words.window([predicted.new[index][1].name for index in inexact])
    by_place: dict[tuple[str, int], list[int]] = {}
    for goal in goals:
        node = true.new[goal][1]
        by_place.setdefault((node.role, node.depth), []).append(goal)
    candidates = {place: Candidates(own) for place, own in by_place.items()}
    pairs = []
    for rank, index in enumerate(inexact):
        node = predicted.new[index][1]
        near = candidates.get((node.role, node.depth))
        if near is None:
            continue

        def similarity(goal: int, node: Node = node) -> float:
            return NEARLY * likeness(node, true.new[goal][1], words)

        best = near.take_best(rank / len(inexact), window, similarity, least=0.5)
        if best is not None:
            pairs.append((best[0], index, best[1]))
    return pairs


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
        # Such a reply has more new nodes than there are, and would score 0 in any case.
        most = len(old) + len(true) + SPARE_LINES
        if texts[0].count("\n") > most:
            return Verdict.unparsable(f"more than {most} lines")
        try:
            page = read_page(texts[0].strip("\r\n"), old)
        except ValueError as error:
            return Verdict.unparsable(f"not a page: {error}")
        if same_page(page, true):
            return Verdict.of(1.0, exact=1.0, f1=1.0)
        value, f1 = score(diff(old, page), diff(old, true), old)
        return Verdict.of(value, exact=0.0, f1=f1)
