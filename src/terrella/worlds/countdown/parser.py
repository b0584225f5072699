"""Parse an arithmetic expression from untrusted text, exactly and without `eval`.

Grammar: sum = product (("+" | "-") product)*; product = atom (("*" | "/") atom)*; atom = number |
"(" sum ")". Anything else (unary signs, powers, decimals, digits of other alphabets, division by
zero, a text beyond the limits below) gives None.
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
"""Also bounds the value (32 numbers of four digits); normalised, the text stays below MAX_CHARS."""
MAX_DEPTH = 12

# [0-9] rather than \d, which also matches the digits of other alphabets.
_TOKEN = re.compile(r"[ \t\r\n]*(?:(?P<number>0|[1-9][0-9]{0,3})(?![0-9])|(?P<sign>[-+*/()]))")
OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
"""The four operators; `/` can raise ZeroDivisionError."""


class Expression(NamedTuple):
    """An expression in normalised form, its exact value and the numbers it uses, in order."""

    text: str
    value: Fraction
    numbers: tuple[int, ...]


class _UnreadableError(ValueError):
    """The text is not an expression."""


def parse(text: str) -> Expression | None:
    """Parse the whole text as one expression; None if that is not possible."""
    try:
        tokens = _tokenize(text)
        value = _Parser(tokens).parse()
    except (_UnreadableError, ZeroDivisionError):
        return None  # an unreadable answer is simply a wrong one
    numbers = tuple(int(token) for token in tokens if token[0] in "0123456789")
    return Expression(_normalised(tokens), value, numbers)


def _tokenize(text: str) -> list[str]:
    if len(text) > MAX_CHARS:
        raise _UnreadableError(f"longer than {MAX_CHARS} characters")
    text = text.strip(" \t\r\n")
    position = 0
    tokens: list[str] = []
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _UnreadableError(f"unexpected character at position {position}")
        if len(tokens) == MAX_TOKENS:
            raise _UnreadableError(f"more than {MAX_TOKENS} tokens")
        tokens.append(match["number"] or match["sign"])
        position = match.end()
    return tokens


def _normalised(tokens: list[str]) -> str:
    return "".join(f" {token} " if token in OPERATORS else token for token in tokens)


class _Parser:
    """Recursive descent over the tokens. Only parentheses recurse, and their depth is limited."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0

    def parse(self) -> Fraction:
        value = self._sum()
        if self.position < len(self.tokens):
            raise _UnreadableError(f"unexpected {self.tokens[self.position]} after the expression")
        return value

    def _peek(self) -> str:
        """The next token, or "" at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _sum(self) -> Fraction:
        return self._chain("+-", self._product)

    def _product(self) -> Fraction:
        return self._chain("*/", self._atom)

    def _chain(self, signs: str, operand: Callable[[], Fraction]) -> Fraction:
        """Operands separated by these signs, left-associative."""
        value = operand()
        while self._peek() and self._peek() in signs:
            sign = self._peek()
            self.position += 1
            value = OPERATORS[sign](value, operand())
        return value

    def _atom(self) -> Fraction:
        token = self._peek()
        self.position += 1
        if token == "(":
            return self._parenthesis()
        if not token or token in "+-*/)":
            raise _UnreadableError(f"expected a number or ( before {token or 'the end'}")
        return Fraction(int(token))

    def _parenthesis(self) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _UnreadableError(f"more than {MAX_DEPTH} nested parentheses")
        value = self._sum()
        if self._peek() != ")":
            raise _UnreadableError("a parenthesis is not closed")
        self.position += 1
        self.depth -= 1
        return value
