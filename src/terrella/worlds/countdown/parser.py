"""Reads an arithmetic expression from untrusted text, exactly and without `eval`.

Grammar: sum = product (("+" | "-") product)*;  product = atom (("*" | "/") atom)*;  atom = number | "(" sum ")".
Whatever is outside it (signs, powers, decimals, other alphabets, division by zero, too much of anything) is None.
    parse("(25 - 5)*3") == Expression(text="(25 - 5) * 3", value=Fraction(60), numbers=(25, 5, 3))
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

MAX_CHARS = 512
MAX_TOKENS = 64
"""Bounds the value too: 32 numbers of four digits. Respelled, this many tokens stay well below MAX_CHARS."""
MAX_DEPTH = 12

# [0-9] rather than \d: the latter also takes the digits of other alphabets.
_TOKEN = re.compile(r"[ \t\r\n]*(?:(?P<number>0|[1-9][0-9]{0,3})(?![0-9])|(?P<sign>[-+*/()]))")
OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
"""The four signs; `/` raises ZeroDivisionError."""


class Expression(NamedTuple):
    """An expression in its one spelling, with its exact value and the numbers it uses, in order."""

    text: str
    value: Fraction
    numbers: tuple[int, ...]


class _UnreadableError(ValueError):
    """The text is not an expression."""


def parse(text: str) -> Expression | None:
    """The expression that the whole text is, or None."""
    try:
        tokens = _tokens(text)
        return Expression(
            _spell(tokens), _Parser(tokens).parse(), tuple(int(t) for t in tokens if t[0] in "0123456789")
        )
    except (_UnreadableError, ZeroDivisionError):  # a wrong answer like any other: the caller learns that it is one
        return None


def _tokens(text: str) -> list[str]:
    if len(text) > MAX_CHARS:
        raise _UnreadableError("too long")
    text, at = text.strip(" \t\r\n"), 0
    tokens: list[str] = []
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or len(tokens) == MAX_TOKENS:
            raise _UnreadableError(f"cannot go on at character {at}")
        tokens.append(found["number"] or found["sign"])
        at = found.end()
    return tokens


def _spell(tokens: list[str]) -> str:
    return "".join(f" {token} " if token in OPERATORS else token for token in tokens)


class _Parser:
    """Recursive descent over the tokens; only parentheses recurse, and they are counted."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    def parse(self) -> Fraction:
        value = self._chain("+-", lambda: self._chain("*/", self._atom))
        if self.at < len(self.tokens):
            raise _UnreadableError(f"{self.tokens[self.at]} is left over")
        return value

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _chain(self, signs: str, part: Callable[[], Fraction]) -> Fraction:
        """Parts joined by these signs, taken from the left."""
        value = part()
        while self._next() and self._next() in signs:
            sign = self._next()
            self.at += 1
            value = OPERATORS[sign](value, part())
        return value

    def _atom(self) -> Fraction:
        token = self._next()
        self.at += 1
        if token == "(":
            return self._parenthesis()
        if not token or token in "+-*/)":
            raise _UnreadableError(f"a number or a parenthesis is missing before {token or 'the end'}")
        return Fraction(int(token))

    def _parenthesis(self) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _UnreadableError("nested too deep")
        value = self._chain("+-", lambda: self._chain("*/", self._atom))
        if self._next() != ")":
            raise _UnreadableError("a parenthesis is not closed")
        self.at += 1
        self.depth -= 1
        return value
