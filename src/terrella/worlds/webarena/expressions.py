"""The `func:` expressions of task files, without `eval`: a name, literals and two page variables.

parse_call("func:shopping_get_sku_latest_review_rating('B00J8RZL7I')") -> Call("shopping_get_...", ("B00J8RZL7I",))
"""

from __future__ import annotations

import re
from typing import NamedTuple

from terrella.core.errors import ConfigError

_CALL = re.compile(r"func:\s*(?P<name>[A-Za-z_]\w*)\((?P<arguments>.*)\)\s*", re.DOTALL)
_ARGUMENT = re.compile(
    r"\s*(?:'(?P<single>[^'\\]*)'|\"(?P<double>[^\"\\]*)\"|(?P<name>__page__)|(?P<number>-?\d+))\s*(,|$)"
)
PAGE = "__page__"


class Call(NamedTuple):
    """A named helper and its arguments; `__page__` stands for the page under check."""

    name: str
    arguments: tuple[str | int, ...]


def parse_call(text: str) -> Call:
    """The call, or ConfigError for anything that is more than a call with literals."""
    found = _CALL.fullmatch(text)
    if found is None:
        raise ConfigError("func:", f"not a call of a named helper: {text[:80]!r}")
    arguments: list[str | int] = []
    rest, place = found["arguments"], 0
    while place < len(rest):
        one = _ARGUMENT.match(rest, place)
        if one is None:
            raise ConfigError("func:", f"not a literal: {rest[place : place + 40]!r}")
        text_value = next((one[group] for group in ("single", "double", "name") if one[group] is not None), None)
        arguments.append(text_value if text_value is not None else int(one["number"]))
        place = one.end()
    return Call(found["name"], tuple(arguments))
