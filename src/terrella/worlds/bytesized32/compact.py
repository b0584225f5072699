"""States and differences in few words, and back: what small models read and write.

A state is `game;#1"room";#0"agent"<#1;#2"light bulb"<#1 on=false;score score=0`; a difference is `#2<#0 on=true;-#5`,
with `+#9"ice":"Ice"<#3 ...` for what is new and `=` for nothing. Objects go by number, `<` says what they are in, and
numbers change by an amount (`tick+1`), because the same amount is right in many states.
    read_difference(show_difference(before, after), before) == after
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from terrella.worlds.bytesized32.things import IN, NAME, NOWHERE, SCORE, TYPE, Things

NOTHING = "="
PLACES = 6
"""Decimal places that amounts are rounded to; an amount that does not lead to the exact value is not used."""
AMOUNT = "\x00"
"""Marks an amount that was read, until it is added to what was there."""
GONE = "!"
"""The value of a property that an object no longer has: no JSON is spelled so."""
_TEXT = r'"(?:[^"\\]|\\.)*"'
_VALUE = rf'(?:{_TEXT}|[^ ;"])+'
_PART = re.compile(rf"(?P<sign>[-+]?)(?P<key>#[0-9]+|{SCORE})(?P<rest>.*)")
_HEAD = re.compile(rf"(?P<name>{_TEXT})?(?::(?P<type>{_TEXT}))?(?:<(?P<place>{NOWHERE}|(?:#[0-9]+)+))?")
_PLAIN_PATH = re.compile(r"[A-Za-z_][\w.#]*")
_PROPERTY = re.compile(rf" (?P<path>{_PLAIN_PATH.pattern}|{_TEXT})(?:=(?P<value>{_VALUE})|(?P<amount>[-+][0-9.]+))")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<places>\.[0-9]+)?")
_SEPARATOR = re.compile(rf"({_TEXT})|;")


def show_state(game: str, things: Things) -> str:
    """The whole state; types are left out, because the game and the name imply them."""
    return ";".join([game, *(_show(key, thing, typed=False) for key, thing in things.items())])


def show_difference(before: Things, after: Things) -> str:
    """What must be said to get from one state to the other."""
    parts = [f"-{key}" for key in before if key not in after]
    parts += [f"+{_show(key, after[key], typed=True)}" for key in after if key not in before]
    changed = ((key, _changes(before[key], after[key])) for key in after if key in before)
    parts += [_show(key, changes, typed=True, changes=True) for key, changes in changed if changes]
    return ";".join(parts) or NOTHING


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    lost = {path: f"={GONE}" for path in old if path not in new}
    new = {path: value for path, value in new.items() if old.get(path) != value}
    return lost | {path: value if path in (NAME, TYPE, IN) else _amount(old.get(path), value)
                   for path, value in new.items()}  # fmt: skip


def _amount(old: str | None, new: str) -> str:
    """By how much a number changes (`+5.0`), where that says it exactly; else the value itself (`=5.0`).

    What falls back to zero from further away than one was reset: there the value says more than the amount.
    """
    amount = None if old is None else subtract(new, old)
    if amount is None or old is None or add(old, amount) != new or (float(new) == 0 and abs(float(amount)) > 1):
        return f"={new}"
    return amount


def subtract(new: str, old: str) -> str | None:
    """The amount between two numbers of one kind, signed; None for anything else."""
    return _sum(new, old, -1)


def add(old: str, amount: str) -> str | None:
    """The number that an amount leads to, as JSON spells it."""
    found = _sum(old, amount.removeprefix("+"), +1)
    return None if found is None else found.removeprefix("+")


def _sum(first: str, second: str, sign: int) -> str | None:
    numbers = _NUMBER.fullmatch(first), _NUMBER.fullmatch(second)
    if numbers[0] is None or numbers[1] is None or (numbers[0]["places"] is None) != (numbers[1]["places"] is None):
        return None
    if numbers[0]["places"] is None:
        return f"{int(first) + sign * int(second):+d}"
    total = round(float(first) + sign * float(second), PLACES)
    return f"{total + 0.0:+.{PLACES}f}".rstrip("0") + ("0" if total == int(total) else "")


def _show(key: str, thing: Mapping[str, str], *, typed: bool, changes: bool = False) -> str:
    head = thing.get(NAME, "") + (f":{thing[TYPE]}" if typed and TYPE in thing else "")
    head += f"<{thing[IN]}" if IN in thing and (changes or thing[IN] != NOWHERE) else ""
    equals = "" if changes else "="
    rest = (f" {_path(path)}{equals}{value}" for path, value in thing.items() if path not in (NAME, TYPE, IN))
    return f"{key}{head}{''.join(rest)}"


def _path(path: str) -> str:
    return path if _PLAIN_PATH.fullmatch(path) else json.dumps(path)


def read_state(text: str) -> tuple[str, Things]:
    """Game and things of a shown state (without types); ValueError for anything else."""
    game, *parts = _parts(text)
    things: Things = {}
    for part in parts:
        sign, key, thing = _read(part)
        if sign or key in things:
            raise ValueError(f"not a part of a state: {part[:80]!r}")
        things[key] = thing if key == SCORE else {IN: NOWHERE, **thing}
    return game, things


def read_difference(text: str, before: Things) -> Things:
    """The state that a difference leads to; ValueError when it is none of this state."""
    after = dict(before)
    if text == NOTHING:
        return after
    said: set[str] = set()
    for part in _parts(text):
        sign, key, thing = _read(part, changes=not part.startswith("+"))
        if key in said or (sign == "+") == (key in before) or (sign == "-" and thing) or not (sign or thing):
            raise ValueError(f"not a change of this state: {part[:80]!r}")
        said.add(key)
        if sign == "-":
            del after[key]
        else:
            after[key] = {IN: NOWHERE, **thing} if sign == "+" else _changed(before[key], thing)
    return after


def _changed(old: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    new = dict(old)
    for path, value in changes.items():
        amount = value.removeprefix(AMOUNT)
        found = add(old.get(path, ""), amount) if amount != value else value
        if found is None or (found == GONE and path not in old):
            raise ValueError(f"{path} has no value that can change so")
        new[path] = found
    return {path: value for path, value in new.items() if value != GONE}


def _parts(text: str) -> Iterator[str]:
    """Split at semicolons that are not inside quotes."""
    return iter(_SEPARATOR.sub(lambda found: found[1] or "\x00", text).split("\x00"))


def _read(part: str, *, changes: bool = False) -> tuple[str, str, dict[str, str]]:
    found = _PART.fullmatch(part)
    head = _HEAD.match(found["rest"]) if found else None
    if found is None or head is None:
        raise ValueError(f"cannot be read: {part[:80]!r}")
    thing = {path: head[name] for path, name in ((NAME, "name"), (TYPE, "type"), (IN, "place")) if head[name]}
    place = head.end()
    while place < len(found["rest"]):
        one = _PROPERTY.match(found["rest"], place)
        if one is None or one["path"] in thing or (one["amount"] and not changes):
            raise ValueError(f"cannot be read: {part[:80]!r}")
        path = one["path"] if one["path"][0] != '"' else json.loads(one["path"])
        thing[path], place = one["value"] or f"{AMOUNT}{one['amount']}", one.end()
    return found["sign"], found["key"], thing
