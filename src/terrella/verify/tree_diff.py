"""The difference between two pages: applicable, blind to element ids, and scored with partial credit.

Nodes are matched from the root down: under a matched parent by role, name and rank among equals, then by role alone
(an update). Nodes that changed places are deleted and new. So a mere renumbering is no change, and
`apply(diff(a, b), a)` is `b` again, ids aside. A model may answer with the whole page or with the changes:
    ^[3] value="kai" focused -checked    node 3 gets and loses these properties
    ~[3] button "Undo"                   node 3 has become this
    -[5]                                 node 5 is gone
    +[3] button "Ok"                     new, after node 3 (indented by its depth); `=` alone: nothing changes
    changes = diff(before, after); write_changes(changes, before); TreeDiff.Config().build().verify(reply, truth, page)
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
"""The most that a reply earns which is not the truth."""
_SET = re.compile(r' (?:-(?P<lost>[a-z][\w-]*)|(?P<key>[a-z][\w-]*)(?:=(?P<value>"(?:[^"\\]|\\.)*"))?)')
_CHANGE = re.compile(r"^(?P<kind>[-~+^])(?:\[(?P<id>\d{1,9})\]|@(?P<line>\d{1,6}))(?: (?P<node>.+))?$")


@dataclass(frozen=True, slots=True)
class Changes:
    """What happens to the lines of a page, by their place in it."""

    deleted: frozenset[int] = frozenset()
    updated: dict[int, Node] = field(default_factory=dict[int, Node])
    new: tuple[tuple[int, Node], ...] = ()
    """(place of the kept line before it or -1, node), in order."""

    def __len__(self) -> int:
        return len(self.deleted) + len(self.updated) + len(self.new)


def bare(node: Node) -> Node:
    """The node without its id, its properties in order: what it is, not how it is called."""
    return replace(node, id=0, properties=tuple(sorted(node.properties)))


def same_page(first: Sequence[Node], second: Sequence[Node]) -> bool:
    """Whether two pages show the same, whatever their ids."""
    return list(map(bare, first)) == list(map(bare, second))


# --- matching -----------------------------------------------------------------------------------------------------


def _children(nodes: Sequence[Node]) -> dict[int, list[int]]:
    """Places of the children of each place; -1 is the page itself."""
    found: dict[int, list[int]] = {-1: []}
    path: list[int] = []
    for place, node in enumerate(nodes):
        del path[node.depth :]
        found.setdefault(path[-1] if path else -1, []).append(place)
        path.append(place)
    return found


def _pair_children(old: Sequence[Node], new: Sequence[Node], a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Siblings that are the same one: by role, name and rank; what is left by role, most similar names first."""
    waiting: dict[tuple[str, str], list[int]] = {}
    for place in reversed(a):
        waiting.setdefault((old[place].role, old[place].name), []).append(place)
    pairs, left = [], []
    for place in b:
        same = waiting.get((new[place].role, new[place].name))
        if same:
            pairs.append((same.pop(), place))
        else:
            left.append(place)
    spare: dict[str, list[int]] = {}
    for place in sorted(place for places in waiting.values() for place in places):
        spare.setdefault(old[place].role, []).append(place)
    for place in left:
        others = spare.get(new[place].role, [])
        if others:
            best = max(others, key=lambda other: (words_f1(old[other].name, new[place].name), -others.index(other)))
            others.remove(best)
            pairs.append((best, place))
    return pairs


def match(old: Sequence[Node], new: Sequence[Node]) -> list[tuple[int, int]]:
    """(place in old, place in new) of nodes that are the same one, in the order of the page."""
    below_old, below_new = _children(old), _children(new)
    waiting, pairs = [(-1, -1)], []
    while waiting:
        a, b = waiting.pop()
        found = _pair_children(old, new, below_old.get(a, []), below_new.get(b, []))
        pairs += found
        waiting += found
    pairs.sort(key=lambda pair: pair[1])
    return _longest_in_order(pairs)


def _longest_in_order(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of the pairs that rises on both sides: the others have changed places."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, (a, _) in enumerate(pairs):
        place = bisect_left(tails, a)
        before.append(ends[place - 1] if place else -1)
        tails[place : place + 1] = [a]
        ends[place : place + 1] = [index]
    chosen, index = [], ends[-1] if ends else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = before[index]
    return chosen[::-1]


# --- difference, and back -----------------------------------------------------------------------------------------


def diff(old: Sequence[Node], new: Sequence[Node]) -> Changes:
    """What turns `old` into `new`."""
    pairs = match(old, new)
    kept = {b: a for a, b in pairs}
    updated = {a: bare(new[b]) for a, b in pairs if bare(old[a]) != bare(new[b])}
    added, anchor = [], -1
    for place, node in enumerate(new):
        if place in kept:
            anchor = kept[place]
        else:
            added.append((anchor, bare(node)))
    return Changes(frozenset(range(len(old))) - {a for a, _ in pairs}, updated, tuple(added))


def apply(changes: Changes, old: Sequence[Node]) -> list[Node]:
    """The page after the changes; kept nodes keep their ids, new ones get the next free ones."""
    after: dict[int, list[Node]] = {}
    free = max((node.id for node in old), default=0) + 1
    for anchor, node in changes.new:
        after.setdefault(anchor, []).append(replace(node, id=free))
        free += 1
    page = list(after.get(-1, []))
    for place, node in enumerate(old):
        if place not in changes.deleted:
            page.append(replace(changes.updated[place], id=node.id) if place in changes.updated else node)
        page += after.get(place, [])
    return page


# --- as text ------------------------------------------------------------------------------------------------------


def write_changes(changes: Changes, old: Sequence[Node]) -> str:
    """One line per change in the order of the page, nodes called by their ids (or by line where they have none)."""
    lines = [(place, 0, f"-{_handle(place, old)}") for place in changes.deleted]
    lines += [(place, 0, _write_update(place, node, old)) for place, node in changes.updated.items()]
    lines += [(anchor, 1, f"+{_handle(anchor, old)} {write_node(node)}") for anchor, node in changes.new]
    lines.sort(key=lambda line: line[:2])
    return "\n".join(text for _, _, text in lines) or NOTHING


def _write_update(place: int, node: Node, old: Sequence[Node]) -> str:
    """The whole node, or only its properties where nothing else changed."""
    before = bare(old[place])
    if (before.role, before.name, before.depth) != (node.role, node.name, node.depth):
        return f"~{_handle(place, old)} {write_node(node)}"
    was, now = dict(before.properties), dict(node.properties)
    told = [f" {k}" if v == "true" else f" {k}={quote(v)}" for k, v in now.items() if was.get(k) != v]
    return f"^{_handle(place, old)}{''.join(told + [f' -{key}' for key in was if key not in now])}"


def _read_properties(text: str, node: Node) -> Node:
    found, place = dict(node.properties), 0
    while place < len(text):
        one = _SET.match(text, place)
        if one is None:
            raise ValueError(f"not a property: {text[place : place + 40]!r}")
        if one["lost"]:
            found.pop(one["lost"], None)
        else:
            found[one["key"]] = json.loads(one["value"]) if one["value"] else "true"
        place = one.end()
    return bare(replace(node, properties=tuple(found.items())))


def _handle(place: int, old: Sequence[Node]) -> str:
    if place < 0:
        return "[0]"
    own = old[place].id
    return f"[{own}]" if own and sum(node.id == own for node in old) == 1 else f"@{place}"


def read_changes(text: str, old: Sequence[Node]) -> Changes:
    """The changes that a text describes; ValueError for what is none, or speaks of nodes that are not there."""
    if text.strip() == NOTHING:
        return Changes()
    places = {node.id: place for place, node in reversed(list(enumerate(old))) if node.id}
    deleted: set[int] = set()
    updated: dict[int, Node] = {}
    new: list[tuple[int, Node]] = []
    for line in text.strip("\n").split("\n"):
        found = _CHANGE.match(line)
        if found is None or (found["kind"] == "-") != (found["node"] is None):
            raise ValueError(f"not a change: {line[:60]!r}")
        place = _place(found, places, len(old), new=found["kind"] == "+")
        if found["kind"] == "+":
            new.append((place, bare(parse_node(found["node"]))))
        elif place in deleted or place in updated:
            raise ValueError(f"two changes of one node: {line[:60]!r}")
        elif found["kind"] == "-":
            deleted.add(place)
        elif found["kind"] == "^":
            updated[place] = _read_properties(f" {found['node']}", old[place])
        else:
            updated[place] = bare(parse_node(found["node"]))
    return Changes(frozenset(deleted), updated, tuple(new))


def _place(found: re.Match[str], places: dict[int, int], count: int, *, new: bool) -> int:
    if found["id"] == "0" and new:
        return -1
    place = places.get(int(found["id"]), -1) if found["id"] else int(found["line"])
    if not 0 <= place < count:
        raise ValueError(f"no such node: {found[0][:60]!r}")
    return place


def read_page(text: str, before: Sequence[Node]) -> list[Node]:
    """The page a reply describes, whole or by its changes; ValueError when it does neither."""
    if text[:1] in ("-", "~", "+", "^", NOTHING):
        page = apply(read_changes(text, before), before)
        parse("\n".join(map(write_node, page)))  # a node must have a parent
        return page
    return parse(text)


# --- the verdict --------------------------------------------------------------------------------------------------


def words_f1(first: str, second: str) -> float:
    """Likeness of two texts by their words."""
    if first == second:
        return 1.0
    one, two = Counter(first.lower().split()), Counter(second.lower().split())
    total = one.total() + two.total()
    return 2 * (one & two).total() / total if total else 0.0


def likeness(predicted: Node, true: Node) -> float:
    """1 for the same node, else part of the credit for role, words of the name and properties; 0 for another role."""
    if predicted == true:
        return 1.0
    if predicted.role != true.role or predicted.depth != true.depth:
        return 0.0
    ours, theirs = set(predicted.properties), set(true.properties)
    shared = 2 * len(ours & theirs) / (len(ours) + len(theirs)) if ours or theirs else 1.0
    return NEARLY * (0.7 * words_f1(predicted.name, true.name) + 0.3 * shared)


def credit_updates(predicted: Changes, true: Changes, before: Sequence[Node]) -> float:
    """Credit for updates: how much nearer to the truth each brings its node, 1 each at most."""
    total = 0.0
    for place in predicted.updated.keys() & true.updated.keys():
        goal = true.updated[place]
        start, end = likeness(bare(before[place]), goal), likeness(predicted.updated[place], goal)
        total += max(0.0, (end - start) / (1.0 - start)) if start < 1.0 else 0.0
    return total


def credit_new(predicted: Changes, true: Changes) -> float:
    """Credit for new nodes: equal ones first, then the most similar, each used once, all in the order of the page."""
    left = list(range(len(true.new)))
    pairs: list[tuple[int, int]] = []
    credit: dict[int, float] = {}
    unsure = []
    for place, one in enumerate(predicted.new):
        equal = next((goal for goal in left if true.new[goal] == one), None)
        if equal is None:
            unsure.append(place)
            continue
        left.remove(equal)
        pairs.append((equal, place))
        credit[place] = 1.0
    for place in unsure:
        scored = [(NEARLY * likeness(predicted.new[place][1], true.new[goal][1]), -goal) for goal in left]
        best, goal = max(scored, default=(0.0, 0))
        if best > 0.5:
            left.remove(-goal)
            pairs.append((-goal, place))
            credit[place] = best
    pairs.sort(key=lambda pair: pair[1])
    return sum(credit[place] for _, place in _longest_in_order(pairs))


def score(predicted: Changes, true: Changes, before: Sequence[Node]) -> tuple[float, float]:
    """(value, F1). The value is 0 for no change, and falls with every wrong claim; F1 is the plain one."""
    shown = credit_updates(predicted, true, before) + credit_new(predicted, true)
    gone = len(predicted.deleted & true.deleted)
    both = len(predicted) + len(true)
    f1 = 2 * (shown + gone) / both if both else 1.0
    claims, real = len(predicted.updated) + len(predicted.new), len(true.updated) + len(true.new)
    wrong = claims - shown + len(predicted.deleted - true.deleted)
    if not len(true) or len(predicted.new) > len(true.new):  # more new nodes than there are: alternatives
        return 0.0, f1
    if not real:
        return (0.0 if wrong else NEARLY * gone / len(true.deleted)), f1
    # Showing the new beside the old is a hedge: what is new counts as far as what must go is gone.
    done = gone / len(true.deleted) if true.deleted else 1.0
    return NEARLY * max(0.0, shown - wrong) / real * done, f1


class TreeDiff(Configurable):
    """Scores the changes that a reply makes to a page, or says it makes; ids never matter."""

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the reply's difference from `before` with the true one."""
        texts = show_text(reply), show_text(truth), show_text(before)
        refused = refuse_unread(*texts)
        if refused is not None:
            return refused
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
