"""Verifier for JSON states: what was created, modified and removed, property by property.

A difference is *applicable*: `apply(diff(a, b), a) == b`. The score is over the difference, so a reply that
changes nothing earns nothing where something changed, and inventing changes costs as much as finding them earns.
    StateDiff.Config().build().verify(State.of({"n": 2}), truth=State.of({"n": 2}), before=State.of({"n": 1}))
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from terrella.core.config import Configurable
from terrella.core.types import Observation, Verdict, canonical_json, show_text
from terrella.verify.text import reply_text

MAX_DEPTH = 64
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Diff:
    """Changes that lead from one JSON value to another, by path.

    A path names keys of objects and places of lists. Values are canonical JSON, so that changes can be compared
    as sets; an object or a list that appears or vanishes counts once per property inside it.
    """

    created: Mapping[Path, str] = field(default_factory=dict[Path, str])
    modified: Mapping[Path, str] = field(default_factory=dict[Path, str])
    removed: frozenset[Path] = frozenset()

    def __len__(self) -> int:
        """How many properties changed."""
        return len(self.created) + len(self.modified) + len(self.removed)

    def facts(self) -> set[tuple[str, Path, str]]:
        """The changes as comparable facts."""
        made = {("created", path, value) for path, value in self.created.items()}
        changed = {("modified", path, value) for path, value in self.modified.items()}
        return made | changed | {("removed", path, "") for path in self.removed}


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """All properties of a JSON value: scalars, and the shells `{}` and `[]` of what holds them.

    A shell is a property of its own, so that an empty list, an absent one and a null are three things.
    """
    if isinstance(value, dict):
        yield path, "{}"
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        yield path, "[]"
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, canonical_json(value)


def diff(before: Any, after: Any) -> Diff:
    """What must be created, modified and removed to get from `before` to `after`."""
    old, new = dict(leaves(before)), dict(leaves(after))
    return Diff(
        created={path: value for path, value in new.items() if path not in old},
        modified={path: value for path, value in new.items() if path in old and old[path] != value},
        removed=frozenset(path for path in old if path not in new),
    )


def apply(change: Diff, before: Any) -> Any:
    """The value after the change: `apply(diff(a, b), a) == b`."""
    properties = dict(leaves(before))
    for path in change.removed:
        del properties[path]
    properties.update(change.modified)
    properties.update(change.created)
    return _build(properties)


def _build(properties: Mapping[Path, str]) -> Any:
    """The JSON value with these properties; parents are placed before what they hold."""
    root: list[Any] = [None]
    places: dict[Path, Any] = {}
    for path in sorted(properties, key=_depth_then_index):
        text = properties[path]
        value: Any = {} if text == "{}" else [] if text == "[]" else json.loads(text)
        places[path] = value
        if not path:
            root[0] = value
        elif isinstance(path[-1], int):
            places[path[:-1]].append(value)
        else:
            places[path[:-1]][path[-1]] = value
    return root[0]


def _depth_then_index(path: Path) -> tuple[int, int]:
    last = path[-1] if path else 0
    return len(path), last if isinstance(last, int) else 0


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
    """Strict JSON: one document, no duplicate keys, no NaN, no infinity, bounded depth. Else ValueError."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if any(len(path) > MAX_DEPTH for path, _ in leaves(value)):
        raise ValueError("nested too deep")
    return value


class StateDiff(Configurable):
    """Scores the changes a reply makes: right ones earn, wrong, missing and invented ones do not.

    value = max(0, right - wrong) / true changes; where nothing changed, 1 for changing nothing, else 0.
    """

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the reply's difference from `before` with the true one."""
        text = reply_text(reply)
        if not text:
            return Verdict.unparsable("empty reply" if text == "" else "reply too long")
        try:
            predicted = parse_state(text)
        except ValueError as error:
            return Verdict.unparsable(f"not a JSON state: {error}")
        start = json.loads(show_text(before))
        return compare_changes(diff(start, predicted), diff(start, json.loads(show_text(truth))))


def compare_changes(predicted: Diff, true: Diff) -> Verdict:
    """The verdict on a predicted difference, with precision, recall and F1 as parts."""
    claimed, real = predicted.facts(), true.facts()
    right = len(claimed & real)
    if not real:
        return Verdict.of(float(not claimed), exact=float(not claimed))
    precision = right / len(claimed) if claimed else 0.0
    recall = right / len(real)
    f1 = 2 * right / (len(claimed) + len(real))
    value = max(0, right - (len(claimed) - right)) / len(real)
    return Verdict.of(value, exact=float(claimed == real), precision=precision, recall=recall, f1=f1)
