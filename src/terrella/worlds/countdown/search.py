"""Expressions over a few numbers: all of them, one that reaches a target, or one random value.

The search builds expressions over ever larger subsets of the numbers (bit masks of their positions)
by combining those of two smaller subsets, so nothing is built twice.
    find_expression((25, 5, 3), target=60) == "(25 - 5) * 3"
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from terrella.worlds.countdown.parser import OPERATORS


class Candidate(NamedTuple):
    """An expression and its value."""

    text: str
    value: Fraction


Key = Callable[[Candidate], Hashable]


@functools.lru_cache(maxsize=64)
def all_expressions(numbers: tuple[int, ...]) -> tuple[str, ...]:
    """All defined expressions that use each number exactly once.

    Sums and products appear in one order only.
    """
    subsets = _proper_subsets(numbers, key=lambda candidate: candidate.text)
    candidates = _combinations(_full_mask(numbers), subsets)
    return tuple(dict.fromkeys(candidate.text for candidate in candidates))


def find_expression(numbers: tuple[int, ...], target: int) -> str | None:
    """An expression that uses each number exactly once and equals the target, or None."""
    subsets = _proper_subsets(numbers, key=lambda candidate: candidate.value)
    for candidate in _combinations(_full_mask(numbers), subsets):
        if candidate.value == target:
            return candidate.text
    return None


def random_value(numbers: tuple[int, ...], rng: np.random.Generator) -> Fraction | None:
    """The value of a random expression: random pairs are combined by random signs.

    None if that divides by zero.
    """
    values = [Fraction(number) for number in numbers]
    while len(values) > 1:
        left = values.pop(int(rng.integers(len(values))))
        right = values.pop(int(rng.integers(len(values))))
        sign = "+-*/"[int(rng.integers(4))]
        if sign == "/" and right == 0:
            return None
        values.append(OPERATORS[sign](left, right))
    return values[0]


def _full_mask(numbers: tuple[int, ...]) -> int:
    return (1 << len(numbers)) - 1


def _proper_subsets(numbers: tuple[int, ...], key: Key) -> dict[int, list[Candidate]]:
    """Candidates for each subset except the full one; of those with equal keys, the first."""
    candidates = {
        1 << index: [Candidate(str(number), Fraction(number))]
        for index, number in enumerate(numbers)
    }
    for subset in range(1, _full_mask(numbers)):
        if subset not in candidates:
            candidates[subset] = _distinct(_combinations(subset, candidates), key)
    return candidates


def _distinct(candidates: Iterable[Candidate], key: Key) -> list[Candidate]:
    first: dict[Hashable, Candidate] = {}
    for candidate in candidates:
        first.setdefault(key(candidate), candidate)
    return list(first.values())


def _combinations(subset: int, candidates: dict[int, list[Candidate]]) -> Iterator[Candidate]:
    """Combine the candidates of every split of the subset into two parts.

    The left part always contains the lowest number, so that each split is visited once.
    """
    lowest = subset & -subset
    part = (subset - 1) & subset
    while part:
        if part & lowest:
            for left in candidates[part]:
                for right in candidates[subset ^ part]:
                    yield from _combine(left, right)
        part = (part - 1) & subset


def _combine(left: Candidate, right: Candidate) -> Iterator[Candidate]:
    """The sum, the product, both differences, and the quotients that are defined."""
    a, x = _enclosed(left), left.value
    b, y = _enclosed(right), right.value
    yield Candidate(f"{a} + {b}", x + y)
    yield Candidate(f"{a} * {b}", x * y)
    yield Candidate(f"{a} - {b}", x - y)
    yield Candidate(f"{b} - {a}", y - x)
    if y:
        yield Candidate(f"{a} / {b}", x / y)
    if x:
        yield Candidate(f"{b} / {a}", y / x)


def _enclosed(candidate: Candidate) -> str:
    return f"({candidate.text})" if " " in candidate.text else candidate.text
