"""Parser for the `func:` expressions of task files, without `eval`.

An expression is a call of a named helper whose arguments are literals or the page variable.
    parse_call("func:review_rating('B00J8RZL7I')")  # Call("review_rating", ("B00J8RZL7I",))
"""

from __future__ import annotations

import re
from typing import NamedTuple

from terrella.core.errors import ConfigError

_CALL = re.compile(r"func:\s*(?P<name>[A-Za-z_]\w*)\((?P<arguments>.*)\)\s*", re.DOTALL)
_ARGUMENT = re.compile(
    r"\s*(?:'(?P<single>[^'\\]*)'|\"(?P<double>[^\"\\]*)\"|(?P<name>__page__)|(?P<number>-?\d+))"
    r"\s*(,|$)"
)
PAGE = "__page__"


class Call(NamedTuple):
    """A named helper and its arguments; `__page__` is the page that is checked."""

    name: str
    arguments: tuple[str | int, ...]


def parse_call(text: str) -> Call:
    """Parse a call; ConfigError for anything more than a call with literals."""
    call = _CALL.fullmatch(text)
    if call is None:
        raise ConfigError("func:", f"not a call of a named helper: {text[:80]!r}")
    arguments: list[str | int] = []
    rest = call["arguments"]
    position = 0
    while position < len(rest):
        argument = _ARGUMENT.match(rest, position)
        if argument is None:
            raise ConfigError("func:", f"not a literal: {rest[position : position + 40]!r}")
        arguments.append(_value(argument))
        position = argument.end()
    return Call(call["name"], tuple(arguments))


def _value(argument: re.Match[str]) -> str | int:
    for group in ("single", "double", "name"):
        if argument[group] is not None:
            return argument[group]
    return int(argument["number"])
