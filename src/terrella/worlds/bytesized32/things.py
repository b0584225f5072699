"""A game state as things: id -> property -> value, each value a short text.

Objects are identified by number (`#3`), also inside the properties of other objects, and each has a
property for its container. So taking an apple is one change (`#3<#0`), not two rewritten lists of
contents. The score is a thing, too. Views show things, and rewards compare them.
    things_of(objects, score)["#3"] == {":name": '"red wire"', ":type": '"Wire"', ":in": "#1", ...}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from terrella.core.types import canonical_json

Things = dict[str, dict[str, str]]
Object = Mapping[str, Any]
"""An object in the games' own format: name, uuid, type, properties, contains (a list of names)."""

SCORE = "score"
NAME, TYPE, IN = ":name", ":type", ":in"
"""Built-in properties of every object; no property of a game begins with a colon."""
NOWHERE = "nowhere"
ADJECTIVES = "clean|dirty|dry|wet"
"""Words that some games put before an object's name in actions only."""
_NUMBERED = re.compile(r"^(.*) \(ID: ([0-9]+)\)$")
_REFERENCE = re.compile(r'"#([0-9]+)"')
_BARE = re.compile(r'("(?:[^"\\]|\\.)*")|#([0-9]+)')


def things_of(objects: Iterable[Object], score: Mapping[str, Any]) -> Things:
    """Convert objects and score to things.

    If two objects share a name, both are placed in every container that lists the name.
    """
    objects = list(objects)
    uuids: dict[str, list[int]] = {}
    containers: dict[str, list[int]] = {}
    for obj in objects:
        uuids.setdefault(obj["name"], []).append(obj["uuid"])
        for name in obj["contains"]:
            containers.setdefault(name, []).append(obj["uuid"])
    keys = {name: f"#{same[0]}" for name, same in uuids.items() if len(same) == 1}
    things = {
        f"#{obj['uuid']}": _thing(obj, containers.get(obj["name"], ()), keys) for obj in objects
    }
    return {**things, SCORE: {key: canonical_json(value) for key, value in score.items()}}


def _thing(obj: Object, containers: Sequence[int], keys: Mapping[str, str]) -> dict[str, str]:
    location = "".join(f"#{uuid}" for uuid in sorted(containers)) or NOWHERE
    thing = {NAME: _short_name(obj), TYPE: canonical_json(obj["type"]), IN: location}
    for name, value in obj["properties"].items():
        for path, leaf in _flatten(name, value, keys):
            thing[path] = value_text(leaf, keys)
    return thing


def _short_name(obj: Object) -> str:
    """The name without its number, as JSON.

    A name without a number, or with another object's, is stored whole after `=`.
    """
    numbered = _NUMBERED.match(obj["name"])
    if numbered and int(numbered[2]) == obj["uuid"] and not numbered[1].startswith("="):
        return canonical_json(numbered[1])
    return canonical_json(f"={obj['name']}")


def long_name(key: str, short: str) -> str:
    """The name in the game's format: `("#3", '"red wire"')` is "red wire (ID: 3)"."""
    name: str = json.loads(short)
    return name[1:] if name.startswith("=") else f"{name} (ID: {key[1:]})"


def _flatten(path: str, value: Any, keys: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Turn tables inside a property into properties (`connects.terminal1`); lists stay whole."""
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, inner in value.items():
        yield from _flatten(f"{path}.{keys.get(name, name)}", inner, keys)


def value_text(value: Any, keys: Mapping[str, str]) -> str:
    """The value of a property as JSON, with objects by number."""
    return _REFERENCE.sub(r"#\1", canonical_json(_with_keys(value, keys)))


def _with_keys(value: Any, keys: Mapping[str, str]) -> Any:
    """Replace object names by keys."""
    if isinstance(value, str):
        return keys.get(value, value)
    return [_with_keys(item, keys) for item in value] if isinstance(value, list | tuple) else value


# --- back to the games' own format ----------------------------------------------------------------


def objects_of(things: Things) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Convert things back to objects and score; contents are ordered by number."""
    names = {key: long_name(key, thing[NAME]) for key, thing in things.items() if key != SCORE}
    contents: dict[str, list[str]] = {key: [] for key in names}
    for key in sorted(names, key=_number):
        for container in re.findall("#[0-9]+", things[key][IN]):
            contents.setdefault(container, []).append(names[key])
    objects = [
        _object(key, things[key], names, contents[key]) for key in sorted(names, key=_number)
    ]
    return objects, {key: json.loads(value) for key, value in things.get(SCORE, {}).items()}


def _number(key: str) -> int:
    return int(key[1:])


def _object(
    key: str, thing: Mapping[str, str], names: Mapping[str, str], contains: list[str]
) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for path, text in thing.items():
        if path not in (NAME, TYPE, IN):
            *tables, last = (names.get(part, part) for part in path.split("."))
            table = properties
            for part in tables:
                table = table.setdefault(part, {})
            table[last] = read_value(text, names)
    return {
        "name": names[key],
        "uuid": _number(key),
        "type": json.loads(thing[TYPE]),
        "properties": properties,
        "contains": contains,
    }


def read_value(text: str, names: Mapping[str, str]) -> Any:
    """Parse the text of a property; references to unknown objects stay as they are."""

    def to_json(match: re.Match[str]) -> str:
        return match[1] or json.dumps(names.get(match[0], match[0]))

    return json.loads(_BARE.sub(to_json, text))


def action_text(action: str, things: Things) -> str:
    """The action with objects by number: "take clean shirt (ID: 3)" is "take #3".

    Names without a number stay as they are.
    """
    for number in set(re.findall(r"\(ID: ([0-9]+)\)", action)):
        name = json.loads(things[f"#{number}"][NAME]) if f"#{number}" in things else ""
        pattern = rf"(?:\b(?:{ADJECTIVES}) )*{re.escape(name)} \(ID: {number}\)"
        action = re.sub(pattern, f"#{number}", action)
    return action
