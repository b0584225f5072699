"""A game state as things with properties, each value a short text: what is compared, shown and changed.

Objects are named by their number (`#3`), also where another object's property names them, and each says what it is in.
So taking an apple is one change (`#3<#0`), not two rewritten lists of contents. The score is a thing, too.
    things_of(objects, score)["#3"] == {":name": '"red wire"', ":type": '"Wire"', ":in": "#1", ...}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from terrella.core.types import canonical_json

Things = dict[str, dict[str, str]]
Object = Mapping[str, Any]
"""An object as the games write it: name, uuid, type, properties, contains (a list of names)."""

SCORE = "score"
NAME, TYPE, IN = ":name", ":type", ":in"
"""What every object has beside its properties; no game has a property that begins with a colon."""
NOWHERE = "nowhere"
ADJECTIVES = "clean|dirty|dry|wet"
"""What some games put before an object's name in an action, and nowhere else."""
_NUMBERED = re.compile(r"^(.*) \(ID: ([0-9]+)\)$")
_REFERENCE = re.compile(r'"#([0-9]+)"')
_BARE = re.compile(r'("(?:[^"\\]|\\.)*")|#([0-9]+)')


def things_of(objects: Iterable[Object], score: Mapping[str, Any]) -> Things:
    """The state in our words. Where two objects share a name, both are said to be wherever that name is listed."""
    objects = list(objects)
    numbers: dict[str, list[int]] = {}
    holders: dict[str, list[int]] = {}
    for one in objects:
        numbers.setdefault(one["name"], []).append(one["uuid"])
        for name in one["contains"]:
            holders.setdefault(name, []).append(one["uuid"])
    names = {name: f"#{found[0]}" for name, found in numbers.items() if len(found) == 1}
    things = {f"#{one['uuid']}": _thing(one, holders.get(one["name"], ()), names) for one in objects}
    return {**things, SCORE: {key: canonical_json(value) for key, value in score.items()}}


def _thing(one: Object, inside: Sequence[int], names: Mapping[str, str]) -> dict[str, str]:
    found = {NAME: _short_name(one), TYPE: canonical_json(one["type"]), IN: _place(inside)}
    for key, value in one["properties"].items():
        for path, leaf in _flat(key, value, names):
            found[path] = value_text(leaf, names)
    return found


def _place(inside: Iterable[int]) -> str:
    return "".join(f"#{number}" for number in sorted(inside)) or NOWHERE


def _short_name(one: Object) -> str:
    """The name without its number; a name that has none, or another one, is kept whole behind `=`."""
    numbered = _NUMBERED.match(one["name"])
    own = numbered is not None and int(numbered[2]) == one["uuid"] and not numbered[1].startswith("=")
    return canonical_json(numbered[1] if numbered and own else f"={one['name']}")


def long_name(thing: str, short: str) -> str:
    """The name as the game writes it: `("#3", '"red wire"')` is "red wire (ID: 3)"."""
    name: str = json.loads(short)
    return name[1:] if name.startswith("=") else f"{name} (ID: {thing[1:]})"


def _flat(path: str, value: Any, names: Mapping[str, str]) -> Iterable[tuple[str, Any]]:
    """Tables inside a property become properties of their own (`connects.terminal1`); lists stay whole."""
    if not isinstance(value, dict) or not value:
        return [(path, value)]
    return [leaf for key, inner in value.items() for leaf in _flat(f"{path}.{names.get(key, key)}", inner, names)]


def value_text(value: Any, names: Mapping[str, str]) -> str:
    """A property's value: JSON, with objects by number."""
    return _REFERENCE.sub(r"#\1", canonical_json(_referring(value, names)))


def _referring(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    return [_referring(item, names) for item in value] if isinstance(value, list | tuple) else value


# --- and back to the games' own words -----------------------------------------------------------------------------


def objects_of(things: Things) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Objects (contents by number) and score, as the games write them."""
    names = {key: long_name(key, thing[NAME]) for key, thing in things.items() if key != SCORE}
    contents: dict[str, list[str]] = {key: [] for key in names}
    for key in sorted(names, key=_number):
        for holder in re.findall("#[0-9]+", things[key][IN]):
            contents.setdefault(holder, []).append(names[key])
    objects = [_object(key, things[key], names, contents[key]) for key in sorted(names, key=_number)]
    return objects, {key: json.loads(value) for key, value in things.get(SCORE, {}).items()}


def _number(key: str) -> int:
    return int(key[1:])


def _object(key: str, thing: Mapping[str, str], names: Mapping[str, str], contains: list[str]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for path, text in thing.items():
        if path not in (NAME, TYPE, IN):
            *tables, last = (names.get(part, part) for part in path.split("."))
            table = properties
            for part in tables:
                table = table.setdefault(part, {})
            table[last] = read_value(text, names)
    return {"name": names[key], "uuid": _number(key), "type": json.loads(thing[TYPE]), "properties": properties,
            "contains": contains}  # fmt: skip


def read_value(text: str, names: Mapping[str, str]) -> Any:
    """The JSON value of a property's text; a number that no object has stays as it is written."""

    def spelled(found: re.Match[str]) -> str:
        return found[1] or json.dumps(names.get(found[0], found[0]))

    return json.loads(_BARE.sub(spelled, text))


def action_text(action: str, things: Things) -> str:
    """The action with objects by number: "take clean shirt (ID: 3)" is "take #3". What has no number stays in words."""
    for key in set(re.findall(r"\(ID: ([0-9]+)\)", action)):
        name = json.loads(things[f"#{key}"][NAME]) if f"#{key}" in things else ""
        pattern = rf"(?:\b(?:{ADJECTIVES}) )*{re.escape(name)} \(ID: {key}\)"
        action = re.sub(pattern, f"#{key}", action)
    return action
