"""Matches the nodes of two pages, in a time that the reply cannot choose.

Under a matched parent, siblings are matched by role, name and rank, and what is left by role and
the most similar name. Comparing all names with all others takes seconds for a page of a thousand
siblings, so the number of comparisons is limited: a node is compared with the candidates nearest to
its own place, as many as `WORDS` allows. Pages of up to about 150 nodes are compared in full. On
larger ones a node that moved far and was renamed counts as deleted and new, which earns less.
    pairs = match(parse(before), parse(after))
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

from terrella.verify.tree import Node

WORDS = 400_000
"""Words of names that may be compared in one matching of two pages."""
FEWEST = 4
"""Candidates that each node is compared with, however large the page is."""
OVERHEAD = 8
"""What one comparison costs beside its words."""
NAME_WORDS = 256
"""Words of one name that are compared; the rest counts as different."""


class NameWords:
    """The words of names, counted once each."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[Counter[str], int]] = {}

    def of(self, name: str) -> tuple[Counter[str], int]:
        """The words that are compared, and the number of all words."""
        counted = self._counted.get(name)
        if counted is None:
            words = name.lower().split()
            counted = self._counted[name] = (Counter(words[:NAME_WORDS]), len(words))
        return counted

    def f1(self, first: str, second: str) -> float:
        """Similarity of two names: F1 over their words, in any order and case."""
        if first == second:
            return 1.0
        (a, size_a), (b, size_b) = self.of(first), self.of(second)
        if not size_a + size_b:
            return 0.0
        if len(a) > len(b):
            a, b = b, a
        return 2 * sum(min(count, b[word]) for word, count in a.items()) / (size_a + size_b)

    def window(self, names: Sequence[str]) -> int:
        """How many candidates each of these names can be compared with."""
        cost = sum(min(self.of(name)[1], NAME_WORDS) + OVERHEAD for name in names)
        return max(FEWEST, WORDS // max(cost, 1))


class Candidates:
    """Candidates in page order, each taken at most once."""

    def __init__(self, items: Sequence[int]) -> None:
        self.items = items
        self.count = len(items)
        self.free = list(range(len(items)))

    def take_best(
        self, place: float, window: int, value: Callable[[int], float], least: float = -1.0
    ) -> tuple[int, float] | None:
        """The best candidate near a place (0 is the first, 1 the end); the first of equals.

        None if there is none, or none with more than `least`.
        """
        centre = bisect_left(self.free, place * self.count)
        start = max(0, min(centre - window // 2, len(self.free) - window))
        best, found = least, -1
        for position in range(start, min(start + window, len(self.free))):
            score = value(self.items[self.free[position]])
            if score > best:
                best, found = score, position
        return None if found < 0 else (self.items[self.free.pop(found)], best)


def match(old: Sequence[Node], new: Sequence[Node]) -> list[tuple[int, int]]:
    """Pairs (index in old, index in new) of matched nodes, in page order."""
    words = NameWords()
    window = words.window([node.name for node in new])
    old_children, new_children = _children(old), _children(new)
    pairs: list[tuple[int, int]] = []
    parents = [(-1, -1)]
    while parents:
        a, b = parents.pop()
        siblings = old_children.get(a, []), new_children.get(b, [])
        matched, changed, by_role = _pair_by_name(old, new, *siblings)
        matched += _pair_by_role(old, new, changed, by_role, words, window)
        pairs += matched
        parents += matched
    pairs.sort(key=lambda pair: pair[1])
    return longest_in_order(pairs)


def _children(nodes: Sequence[Node]) -> dict[int, list[int]]:
    """Indices of the children of each node; -1 is the page itself."""
    children: dict[int, list[int]] = {-1: []}
    path: list[int] = []
    for index, node in enumerate(nodes):
        del path[node.depth :]
        children.setdefault(path[-1] if path else -1, []).append(index)
        path.append(index)
    return children


def _pair_by_name(
    old: Sequence[Node], new: Sequence[Node], a: list[int], b: list[int]
) -> tuple[list[tuple[int, int]], list[int], dict[str, Candidates]]:
    """Pairs of equal role and name, by rank; the other new nodes; the other old ones by role."""
    unmatched: dict[tuple[str, str], list[int]] = {}
    for index in reversed(a):
        unmatched.setdefault((old[index].role, old[index].name), []).append(index)
    pairs, changed = [], []
    for index in b:
        same = unmatched.get((new[index].role, new[index].name))
        if same:
            pairs.append((same.pop(), index))
        else:
            changed.append(index)
    by_role: dict[str, list[int]] = {}
    for index in sorted(index for indices in unmatched.values() for index in indices):
        by_role.setdefault(old[index].role, []).append(index)
    return pairs, changed, {role: Candidates(indices) for role, indices in by_role.items()}


def _pair_by_role(
    old: Sequence[Node],
    new: Sequence[Node],
    changed: Sequence[int],
    by_role: dict[str, Candidates],
    words: NameWords,
    window: int,
) -> list[tuple[int, int]]:
    """Pairs of equal role: of the candidates near a node's place, the one with the nearest name."""
    total = Counter(new[index].role for index in changed)
    seen: Counter[str] = Counter()
    pairs = []
    for index in changed:
        node = new[index]
        place = seen[node.role] / total[node.role]
        seen[node.role] += 1
        candidates = by_role.get(node.role)
        if candidates is None:
            continue

        def similarity(candidate: int, name: str = node.name) -> float:
            return words.f1(old[candidate].name, name)

        best = candidates.take_best(place, window, similarity)
        if best is not None:
            pairs.append((best[0], index))
    return pairs


def longest_in_order(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
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
