"""What can be made from a few numbers: all expressions, one that reaches a target, one random value.

The first two grow sets of numbers by joining two smaller ones, so nothing is built twice.
    find_way((25, 5, 3), target=60) == "(25 - 5) * 3"
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from terrella.worlds.countdown.parser import OPERATORS


class Way(NamedTuple):
    """An expression and its value."""

    text: str
    value: Fraction


@functools.lru_cache(maxsize=64)
def all_expressions(numbers: tuple[int, ...]) -> tuple[str, ...]:
    """All expressions that use each number exactly once and are defined; sums and products in one order only."""
    parts = _parts(numbers, same=lambda way: way.text)
    return tuple(way.text for way in _distinct(_joins(_everything(numbers), parts), same=lambda way: way.text))


def find_way(numbers: tuple[int, ...], target: int) -> str | None:
    """An expression that uses each number exactly once and equals the target, or None when there is none."""
    parts = _parts(numbers, same=lambda way: way.value)
    return next((way.text for way in _joins(_everything(numbers), parts) if way.value == target), None)


def random_value(numbers: tuple[int, ...], rng: np.random.Generator) -> Fraction | None:
    """The value after joining two random parts by a random sign until one is left; None if that divides by zero."""
    parts = [Fraction(n) for n in numbers]
    while len(parts) > 1:
        left = parts.pop(int(rng.integers(len(parts))))
        right = parts.pop(int(rng.integers(len(parts))))
        sign = "+-*/"[int(rng.integers(4))]
        if sign == "/" and right == 0:
            return None
        parts.append(OPERATORS[sign](left, right))
    return parts[0]


def _everything(numbers: tuple[int, ...]) -> int:
    """The set of all numbers, as a bit mask of their places."""
    return (1 << len(numbers)) - 1


def _parts(numbers: tuple[int, ...], same: Callable[[Way], Hashable]) -> dict[int, list[Way]]:
    """For each set of numbers except the whole: the ways to use them all. Of ways that are the `same`, one is kept."""
    ways: dict[int, list[Way]] = {1 << place: [Way(str(n), Fraction(n))] for place, n in enumerate(numbers)}
    for chosen in range(1, _everything(numbers)):
        if chosen not in ways:
            ways[chosen] = _distinct(_joins(chosen, ways), same)
    return ways


def _distinct(ways: Iterable[Way], same: Callable[[Way], Hashable]) -> list[Way]:
    kept: dict[Hashable, Way] = {}
    for way in ways:
        kept.setdefault(same(way), way)
    return list(kept.values())


def _joins(chosen: int, ways: dict[int, list[Way]]) -> Iterator[Way]:
    """All ways to join two parts of a set. The part with the lowest number of the set comes first."""
    lowest, part = chosen & -chosen, (chosen - 1) & chosen
    while part:
        if part & lowest:
            for left in ways[part]:
                for right in ways[chosen ^ part]:
                    yield from _join(left, right)
        part = (part - 1) & chosen


def _join(left: Way, right: Way) -> Iterator[Way]:
    """The two sums and products that differ, both differences, and the quotients that exist."""
    (a, x), (b, y) = (_enclosed(left), left.value), (_enclosed(right), right.value)
    yield Way(f"{a} + {b}", x + y)
    yield Way(f"{a} * {b}", x * y)
    yield Way(f"{a} - {b}", x - y)
    yield Way(f"{b} - {a}", y - x)
    if y:
        yield Way(f"{a} / {b}", x / y)
    if x:
        yield Way(f"{b} / {a}", y / x)


def _enclosed(way: Way) -> str:
    return f"({way.text})" if " " in way.text else way.text
