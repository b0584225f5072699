"""A compact text format of states and differences for small models, and its parser.

A state is `game;#1"room";#0"agent"<#1;#2"light bulb"<#1 on=false;score score=0`. A difference is
`#2<#0 on=true;-#5`, with `+#9"ice":"Ice"<#3 ...` for a new object and `=` for no change. `<` gives
the container. Numbers change by an amount (`tick+1`), because the same amount is right in many
states.
    read_difference(show_difference(before, after), before) == after
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from terrella.worlds.bytesized32.things import IN, NAME, NOWHERE, SCORE, TYPE, Things

NO_CHANGE = "="
DECIMALS = 6
"""Decimals of an amount. An amount that does not lead to the exact value is not used."""
AMOUNT = "\x00"
"""Marks a parsed value as an amount that is still to be added to the old value."""
REMOVED = "!"
"""The value of a removed property; it is not valid JSON, so no real value looks like it."""
_TEXT = r'"(?:[^"\\]++|\\.)*+"'
_VALUE = rf'(?:{_TEXT}|[^ ;"])+'
_PART = re.compile(rf"(?P<sign>[-+]?)(?P<key>#[0-9]+|{SCORE})(?P<rest>.*)")
_HEAD = re.compile(
    rf"(?P<name>{_TEXT})?(?::(?P<type>{_TEXT}))?(?:<(?P<container>{NOWHERE}|(?:#[0-9]+)+))?"
)
_PLAIN_PATH = re.compile(r"[A-Za-z_][\w.#]*")
_PROPERTY = re.compile(
    rf" (?P<path>{_PLAIN_PATH.pattern}|{_TEXT})(?:=(?P<value>{_VALUE})|(?P<amount>[-+][0-9.]+))"
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<decimals>\.[0-9]+)?")
# A text, closed or cut off by the end: it always matches, so that the time is linear.
_SEPARATOR = re.compile(r'("(?:[^"\\]++|\\.)*+(?:"|\\?\Z))|;', re.DOTALL)


def show_state(game: str, things: Things) -> str:
    """Write a whole state; types are left out, because the game and the name imply them."""
    return ";".join([game, *(_show(key, thing, typed=False) for key, thing in things.items())])


def show_difference(before: Things, after: Things) -> str:
    """Write the changes that lead from one state to the other."""
    parts = [f"-{key}" for key in before if key not in after]
    parts += [f"+{_show(key, after[key], typed=True)}" for key in after if key not in before]
    changed = ((key, _changes(before[key], after[key])) for key in after if key in before)
    parts += [_show(key, changes, typed=True, changes=True) for key, changes in changed if changes]
    return ";".join(parts) or NO_CHANGE


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    changes = {path: f"={REMOVED}" for path in old if path not in new}
    for path, value in new.items():
        if old.get(path) != value:
            changes[path] = value if path in (NAME, TYPE, IN) else _change(old.get(path), value)
    return changes


def _change(old: str | None, new: str) -> str:
    """The signed amount of the change (`+5.0`) if that is exact, else the new value (`=5.0`).

    A number that drops to zero by more than one was probably reset, so the value is used there too.
    """
    amount = None if old is None else subtract(new, old)
    if amount is None or old is None or add(old, amount) != new:
        return f"={new}"
    is_reset = float(new) == 0 and abs(float(amount)) > 1
    return f"={new}" if is_reset else amount


def subtract(new: str, old: str) -> str | None:
    """The signed difference of two integers or two decimals; None for anything else."""
    return _sum(new, old, -1)


def add(old: str, amount: str) -> str | None:
    """The sum of a number and an amount, written as JSON."""
    total = _sum(old, amount.removeprefix("+"), +1)
    return None if total is None else total.removeprefix("+")


def _sum(first: str, second: str, sign: int) -> str | None:
    matches = _NUMBER.fullmatch(first), _NUMBER.fullmatch(second)
    if matches[0] is None or matches[1] is None:
        return None
    is_integer = matches[0]["decimals"] is None
    if is_integer != (matches[1]["decimals"] is None):
        return None
    if is_integer:
        return f"{int(first) + sign * int(second):+d}"
    total = round(float(first) + sign * float(second), DECIMALS)
    return f"{total + 0.0:+.{DECIMALS}f}".rstrip("0") + ("0" if total == int(total) else "")


def _show(key: str, thing: Mapping[str, str], *, typed: bool, changes: bool = False) -> str:
    head = thing.get(NAME, "") + (f":{thing[TYPE]}" if typed and TYPE in thing else "")
    head += f"<{thing[IN]}" if IN in thing and (changes or thing[IN] != NOWHERE) else ""
    equals = "" if changes else "="
    properties = (
        f" {_path(path)}{equals}{value}"
        for path, value in thing.items()
        if path not in (NAME, TYPE, IN)
    )
    return f"{key}{head}{''.join(properties)}"


def _path(path: str) -> str:
    return path if _PLAIN_PATH.fullmatch(path) else json.dumps(path)


def read_state(text: str) -> tuple[str, Things]:
    """Parse a state into the game and its things (without types).

    Raises:
        ValueError: The text is not a state.
    """
    game, *parts = _parts(text)
    things: Things = {}
    for part in parts:
        sign, key, thing = _read(part)
        if sign or key in things:
            raise ValueError(f"not a part of a state: {part[:80]!r}")
        things[key] = thing if key == SCORE else {IN: NOWHERE, **thing}
    return game, things


def read_difference(text: str, before: Things) -> Things:
    """Parse a difference and apply it to the state before.

    Raises:
        ValueError: The text is not a difference, or it does not fit the state.
    """
    after = dict(before)
    if text == NO_CHANGE:
        return after
    seen: set[str] = set()
    for part in _parts(text):
        sign, key, thing = _read(part, changes=not part.startswith("+"))
        is_known = key in before
        is_empty = not (sign or thing)
        if key in seen or is_empty or (sign == "+") == is_known or (sign == "-" and thing):
            raise ValueError(f"not a change of this state: {part[:80]!r}")
        seen.add(key)
        if sign == "-":
            del after[key]
        elif sign == "+":
            after[key] = {IN: NOWHERE, **thing}
        else:
            after[key] = _apply_changes(before[key], thing)
    return after


def _apply_changes(old: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    new = dict(old)
    for path, value in changes.items():
        is_amount = value.startswith(AMOUNT)
        result = add(old.get(path, ""), value.removeprefix(AMOUNT)) if is_amount else value
        if result is None or (result == REMOVED and path not in old):
            raise ValueError(f"{path} cannot change like this")
        new[path] = result
    return {path: value for path, value in new.items() if value != REMOVED}


def _parts(text: str) -> Iterator[str]:
    """Split at semicolons that are not inside quotes."""
    return iter(_SEPARATOR.sub(lambda match: match[1] or "\x00", text).split("\x00"))


def _read(part: str, *, changes: bool = False) -> tuple[str, str, dict[str, str]]:
    """Parse one part into its sign, its key and its properties."""
    match = _PART.fullmatch(part)
    head = _HEAD.match(match["rest"]) if match else None
    if match is None or head is None:
        raise ValueError(f"cannot be read: {part[:80]!r}")
    builtin = {NAME: head["name"], TYPE: head["type"], IN: head["container"]}
    thing = {path: value for path, value in builtin.items() if value}
    rest, position = match["rest"], head.end()
    while position < len(rest):
        item = _PROPERTY.match(rest, position)
        if item is None or item["path"] in thing or (item["amount"] and not changes):
            raise ValueError(f"cannot be read: {part[:80]!r}")
        path = item["path"] if item["path"][0] != '"' else json.loads(item["path"])
        thing[path] = item["value"] or f"{AMOUNT}{item['amount']}"
        position = item.end()
    return match["sign"], match["key"], thing
