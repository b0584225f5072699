"""Rewards for a predicted state of things with properties: exact, F1 over what changed, and one that pays in parts.

All three are made of the difference of `verify/state.py`: what was created, modified, removed, property by property.
Each gives the truth 1 and nothing else; none exceeds 1; what is invented costs.
    reward("f1", before, predicted, true)    # three states: thing -> property -> text
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from terrella.core.types import Verdict
from terrella.verify.state import Diff, compare

Properties = Mapping[str, Mapping[str, str]]
"""A state: thing -> property -> value, as text."""
Reward = Literal["exact", "task_specific", "f1"]
REWARDS: tuple[Reward, ...] = get_args(Reward)

KEPT, RIGHT, CHANGED = 0.1, 0.2, 0.7
"""Weights of `task_specific`: properties that are right in the end, all of them right, changes that were found."""


def reward(kind: Reward, before: Properties, predicted: Properties, true: Properties) -> Verdict:
    """The verdict of this reward, with the other figures as parts."""
    old, said, real = flat(before), flat(predicted), flat(true)
    claimed, wanted = compare(old, said), compare(old, real)
    right, made, asked = _right(claimed, wanted), len(claimed), len(wanted)
    f1 = 2 * right / (made + asked) if made + asked else 1.0
    exact = float(claimed == wanted)
    values: dict[Reward, Callable[[], float]] = {
        "exact": lambda: exact,
        "f1": lambda: f1,
        "task_specific": lambda: exact or _in_parts(_kept(said, real), right, made, asked),
    }
    return Verdict.of(values[kind](), exact=exact, f1=f1, invented=float(made - right), missed=float(asked - right))


def flat(state: Properties) -> dict[tuple[str | int, ...], str]:
    """(thing, property) -> value. A thing without properties is one, too."""
    return {(thing, name): value for thing, held in state.items() for name, value in (held or {"": ""}).items()}


def _right(claimed: Diff, wanted: Diff) -> int:
    return len(claimed.asserted() & wanted.asserted()) + len(claimed.removed & wanted.removed)


def _kept(said: Mapping[tuple[str | int, ...], str], real: Mapping[tuple[str | int, ...], str]) -> float:
    """Share of all properties, said or real, that are as they should be."""
    everything = said.keys() | real.keys()
    same = sum(key in said and key in real and said[key] == real[key] for key in everything)
    return same / len(everything) if everything else 1.0


def _in_parts(kept: float, right: int, made: int, asked: int) -> float:
    """What a reply that is not all right earns: 0.1 kept + 0.7 changes found; without changes a third is kept.

    Changes found are right / (asked + invented): naming more than what changes lowers it.
    """
    if not asked:
        return KEPT * kept / (KEPT + RIGHT)
    return KEPT * kept + CHANGED * right / (asked + made - right)
