"""Verifier for JSON states: what was created, modified and removed, property by property.

A difference can be applied: `apply(diff(a, b), a) == b`. The score is computed on the difference,
so a reply that changes nothing scores 0 where something changed, and an invented change costs as
much as a right one earns. The scoring rule is `change_gain`.
    verifier = StateDiff.Config().build()
    verifier.verify(State.of({"n": 2}), truth=State.of({"n": 2}), before=State.of({"n": 1}))
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.types import Observation, Verdict, canonical_json, show_text
from terrella.verify.text import refuse_unread

MAX_DEPTH = 64
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Diff:
    """Changes from one JSON value to another, by path.

    A path consists of object keys (text) and list indices (numbers). Values are canonical JSON, so
    that changes can be compared as sets and 1, 1.0, true and "1" are four different values, as in
    the text of the state.
    """

    created: Mapping[Path, str] = field(default_factory=dict[Path, str])
    modified: Mapping[Path, str] = field(default_factory=dict[Path, str])
    removed: frozenset[Path] = frozenset()

    def __len__(self) -> int:
        """Number of changed properties."""
        return len(self.created) + len(self.modified) + len(self.removed)

    def asserted(self) -> set[tuple[Path, str]]:
        """Created and modified properties with their new values."""
        return {*self.created.items(), *self.modified.items()}


def leaves(value: Any) -> dict[Path, str]:
    """All properties of a JSON value: its scalars and its *empty* objects and lists, by path.

    A container with content is not a property: its content implies it, so predicting it earns
    nothing. An empty one is, so that an empty list, an absent list and a null are different.
    """
    properties: dict[Path, str] = {}
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
            properties[path] = canonical_json(item)
    return properties


def diff(before: Any, after: Any) -> Diff:
    """The changes from `before` to `after`."""
    return compare(leaves(before), leaves(after))


def compare(old: Mapping[Path, str], new: Mapping[Path, str]) -> Diff:
    """The changes from one set of properties to another."""
    return Diff(
        created={path: value for path, value in new.items() if path not in old},
        modified={path: value for path, value in new.items() if path in old and old[path] != value},
        removed=frozenset(path for path in old if path not in new),
    )


def apply(change: Diff, before: Any) -> Any:
    """The value after the changes: `apply(diff(a, b), a) == b`."""
    unchanged = {
        path: value for path, value in leaves(before).items() if path not in change.removed
    }
    return _build({**unchanged, **change.modified, **change.created})


def _build(properties: Mapping[Path, str]) -> Any:
    """The JSON value with these properties: group by first key, then recurse."""
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
    """Parse strict JSON: one document, no duplicate keys, no comments, no NaN or infinity.

    Raises ValueError for anything else.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
        )
    except RecursionError as error:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from error


class StateDiff(Configurable):
    """Scores the changes that a reply makes to the state before.

    The value is `change_gain`; precision, recall and F1 over the changed properties are parts.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """What counts as right."""

        tolerance: float = 0.0
        """How far a number with a point may be from the true one.

        Rounded numbers hide part of the state, so a perfect model errs by a unit of the last digit.
        A number that has changed must differ from the old one all the same. The part `exact` does
        not use the tolerance.
        """

        def __post_init__(self) -> None:
            """Refuse a distance below 0."""
            if not 0 <= self.tolerance < math.inf:
                raise ConfigError("tolerance", f"must be at least 0, not {self.tolerance}")

    config: Config

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the reply's changes with the true ones."""
        text, true, old = show_text(reply), show_text(truth), show_text(before)
        refused = refuse_unread(text, true, old)
        if refused is not None:
            return refused
        try:
            predicted = leaves(parse_state(text))
        except ValueError as error:
            return Verdict.unparsable(f"not a JSON state: {error}")
        start, goal = leaves(json.loads(old)), leaves(json.loads(true))
        if not self.config.tolerance:
            return compare_changes(compare(start, predicted), compare(start, goal))
        near = _corrected(predicted, goal, start, self.config.tolerance)
        verdict = compare_changes(compare(start, near), compare(start, goal))
        return replace(verdict, parts={**verdict.parts, "exact": float(predicted == goal)})


def _corrected(
    predicted: Mapping[Path, str], true: Mapping[Path, str], old: Mapping[Path, str], most: float
) -> dict[Path, str]:
    """The prediction, with the true number in place of one that is at most so far from it.

    A number that was copied although it changed stays as it is.
    """
    return {
        path: true[path]
        if (value != old.get(path) or true.get(path) == value)
        and _distance(value, true.get(path, "")) <= most * (1 + 1e-6)
        else value
        for path, value in predicted.items()
    }


def _distance(first: str, second: str) -> float:
    """Between two numbers with a point, given as JSON; infinite for anything else."""
    one, other = (json.loads(text) if text else None for text in (first, second))
    return abs(one - other) if isinstance(one, float) and isinstance(other, float) else math.inf


def compare_changes(predicted: Diff, true: Diff) -> Verdict:
    """Verdict on predicted changes, with precision, recall and F1 as parts."""
    right = len(predicted.asserted() & true.asserted()) + len(predicted.removed & true.removed)
    return Verdict.of(
        change_gain(predicted, true),
        exact=float(predicted == true),
        precision=right / len(predicted) if len(predicted) else 0.0,
        recall=right / len(true) if len(true) else 0.0,
        f1=2 * right / (len(predicted) + len(true)) if len(predicted) + len(true) else 1.0,
    )


def change_gain(predicted: Diff, true: Diff) -> float:
    """Score of the predicted changes: 0 for none, 1 for exactly the true ones.

    value = max(0, right - wrong) / true values, times the fraction of all changes that was made.
    Only created and modified values earn. Removals scale that, and earn nothing alone, because a
    reply that leaves something out also "removes" it. A property that is neither in the state
    before nor in the truth voids the reply: otherwise alternatives could be listed there.
    """
    if predicted == true:
        return 1.0
    invented = predicted.created.keys() - true.created.keys()
    if not len(true) or invented:
        return 0.0
    claimed, real = predicted.asserted(), true.asserted()
    gone = len(predicted.removed & true.removed)
    wrong = len(claimed - real) + len(predicted.removed - true.removed)
    if not real:  # only removals: a reply that also drops other properties earns nothing
        return 0.0 if wrong else gone / len(true.removed)
    right = len(claimed & real)
    return max(0, right - wrong) / len(real) * (len(real) + gone) / len(true)
