"""Verifier for JSON states: what was created, modified and removed, property by property.

A difference is *applicable*: `apply(diff(a, b), a) == b`. The score is over the difference, so a reply that
changes nothing earns nothing where something changed, and inventing changes costs as much as finding them earns.
The hook that matters is `change_gain`.
    StateDiff.Config().build().verify(State.of({"n": 2}), truth=State.of({"n": 2}), before=State.of({"n": 1}))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from terrella.core.config import Configurable
from terrella.core.types import Observation, Verdict, canonical_json, show_text
from terrella.verify.text import refuse_unread

MAX_DEPTH = 64
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Diff:
    """Changes that lead from one JSON value to another, by path.

    A path names keys of objects (text) and places of lists (numbers). Values are canonical JSON, so that changes
    can be compared as sets, and so that 1, 1.0, true and "1" are four different values, as in the state's own text.
    """

    created: Mapping[Path, str] = field(default_factory=dict[Path, str])
    modified: Mapping[Path, str] = field(default_factory=dict[Path, str])
    removed: frozenset[Path] = frozenset()

    def __len__(self) -> int:
        """How many properties changed."""
        return len(self.created) + len(self.modified) + len(self.removed)

    def asserted(self) -> set[tuple[Path, str]]:
        """What is said to hold now: created and modified properties with their values."""
        return {*self.created.items(), *self.modified.items()}


def leaves(value: Any) -> dict[Path, str]:
    """All properties of a JSON value: its scalars, and its *empty* objects and lists, by path.

    What holds something follows from what it holds, so a container is no property of its own: naming it earns
    nothing. An empty one is, so that an empty list, an absent one and a null are three things.
    """
    found: dict[Path, str] = {}
    todo: list[tuple[Path, Any]] = [((), value)]
    while todo:
        path, item = todo.pop()
        if len(path) > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if isinstance(item, dict) and item:
            todo.extend(((*path, key), inner) for key, inner in item.items())
        elif isinstance(item, list) and item:
            todo.extend(((*path, index), inner) for index, inner in enumerate(item))
        else:
            found[path] = canonical_json(item)
    return found


def diff(before: Any, after: Any) -> Diff:
    """What must be created, modified and removed to get from `before` to `after`."""
    return compare(leaves(before), leaves(after))


def compare(old: Mapping[Path, str], new: Mapping[Path, str]) -> Diff:
    """The difference of two sets of properties."""
    return Diff(
        created={path: value for path, value in new.items() if path not in old},
        modified={path: value for path, value in new.items() if path in old and old[path] != value},
        removed=frozenset(path for path in old if path not in new),
    )


def apply(change: Diff, before: Any) -> Any:
    """The value after the change: `apply(diff(a, b), a) == b`."""
    kept = {path: value for path, value in leaves(before).items() if path not in change.removed}
    return _build({**kept, **change.modified, **change.created})


def _build(properties: Mapping[Path, str]) -> Any:
    """The JSON value with these properties: grouped by first key, then each group in the same way."""
    if () in properties:
        return json.loads(properties[()])
    groups: dict[str | int, dict[Path, str]] = {}
    for path, value in properties.items():
        groups.setdefault(path[0], {})[path[1:]] = value
    if all(isinstance(key, int) for key in groups):
        return [_build(groups[index]) for index in range(len(groups))]
    return {str(key): _build(group) for key, group in groups.items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(f"{text} is too large for a number")
    return number


def parse_state(text: str) -> Any:
    """Strict JSON: one document, no duplicate keys, no comments, no NaN or infinity. Else ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from error


class StateDiff(Configurable):
    """Scores the changes a reply makes: right ones earn; wrong, missing and invented ones do not.

    The value is `change_gain`; precision, recall and F1 over the changed properties are parts beside it.
    """

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the reply's difference from `before` with the true one."""
        text, true, old = show_text(reply), show_text(truth), show_text(before)
        refused = refuse_unread(text, true, old)
        if refused is not None:
            return refused
        try:
            predicted = leaves(parse_state(text))
        except ValueError as error:
            return Verdict.unparsable(f"not a JSON state: {error}")
        start = leaves(json.loads(old))
        return compare_changes(compare(start, predicted), compare(start, leaves(json.loads(true))))


def compare_changes(predicted: Diff, true: Diff) -> Verdict:
    """The verdict on a predicted difference, with precision, recall and F1 as parts."""
    right = len(predicted.asserted() & true.asserted()) + len(predicted.removed & true.removed)
    return Verdict.of(
        change_gain(predicted, true),
        exact=float(predicted == true),
        precision=right / len(predicted) if len(predicted) else 0.0,
        recall=right / len(true) if len(true) else 0.0,
        f1=2 * right / (len(predicted) + len(true)) if len(predicted) + len(true) else 1.0,
    )


def change_gain(predicted: Diff, true: Diff) -> float:
    """How far the predicted changes go: 0 for none of them, 1 for exactly the true ones.

    value = max(0, right - wrong) / true values, times the share of the changes that was made. Values that are
    created or modified earn; removals only complete them, because saying less is a removal too. Inventing a
    property that is neither in the state before nor in the truth voids the reply: that is where alternatives hide.
    """
    if predicted == true:
        return 1.0
    invented = predicted.created.keys() - true.created.keys()
    if not len(true) or invented:
        return 0.0
    claimed, real = predicted.asserted(), true.asserted()
    gone = len(predicted.removed & true.removed)
    wrong = len(claimed - real) + len(predicted.removed - true.removed)
    if not real:  # properties only vanish: a reply that drops what stays has said less, not predicted more
        return 0.0 if wrong else gone / len(true.removed)
    right = len(claimed & real)
    return max(0, right - wrong) / len(real) * (len(real) + gone) / len(true)
