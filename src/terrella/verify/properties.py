"""Rewards for predicted states of objects with properties: exact, F1 and partial credit.

All three are computed from the difference of `verify/state.py`: which properties were created,
modified and removed. Each is 1 for the truth and less for anything else; invented changes lower it.
    reward("f1", before, predicted, true)    # three states: object -> property -> text
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from terrella.core.types import Verdict
from terrella.verify.state import Diff, compare

Properties = Mapping[str, Mapping[str, str]]
"""A state: object -> property -> value, as text."""
Reward = Literal["exact", "task_specific", "f1"]
REWARDS: tuple[Reward, ...] = get_args(Reward)

CORRECT_WEIGHT, EXACT_WEIGHT, CHANGED_WEIGHT = 0.1, 0.2, 0.7
"""Weights of `task_specific`: fraction of correct properties, exact match, changes found."""


def reward(kind: Reward, before: Properties, predicted: Properties, true: Properties) -> Verdict:
    """Verdict with this kind of reward as its value and the other metrics as its parts."""
    old, new, real = flat(before), flat(predicted), flat(true)
    claimed, expected = compare(old, new), compare(old, real)
    right = _count_right(claimed, expected)
    total = len(claimed) + len(expected)
    f1 = 2 * right / total if total else 1.0
    exact = float(claimed == expected)
    invented = len(claimed) - right
    values: dict[Reward, Callable[[], float]] = {
        "exact": lambda: exact,
        "f1": lambda: f1,
        "task_specific": lambda: (
            exact or _partial_credit(_correct_fraction(new, real), right, len(expected), invented)
        ),
    }
    return Verdict.of(
        values[kind](),
        exact=exact,
        f1=f1,
        invented=float(invented),
        missed=float(len(expected) - right),
    )


def flat(state: Properties) -> dict[tuple[str | int, ...], str]:
    """(object, property) -> value; an object without properties has one entry, too."""
    return {
        (thing, name): value
        for thing, properties in state.items()
        for name, value in (properties or {"": ""}).items()
    }


def _count_right(claimed: Diff, expected: Diff) -> int:
    return len(claimed.asserted() & expected.asserted()) + len(claimed.removed & expected.removed)


def _correct_fraction(
    predicted: Mapping[tuple[str | int, ...], str], real: Mapping[tuple[str | int, ...], str]
) -> float:
    """Fraction of all properties, predicted or real, whose predicted value is the real one."""
    keys = predicted.keys() | real.keys()
    same = sum(key in predicted and key in real and predicted[key] == real[key] for key in keys)
    return same / len(keys) if keys else 1.0


def _partial_credit(correct: float, right: int, expected: int, invented: int) -> float:
    """Reward of a reply that is not exact: 0.1 correct + 0.7 right / (expected + invented).

    `correct` is the fraction of correct properties, `right` the number of true changes found. Where
    nothing changes, the reward is a third of `correct`.
    """
    if not expected:
        return CORRECT_WEIGHT * correct / (CORRECT_WEIGHT + EXACT_WEIGHT)
    return CORRECT_WEIGHT * correct + CHANGED_WEIGHT * right / (expected + invented)
