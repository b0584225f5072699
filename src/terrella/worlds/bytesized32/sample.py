"""A generated sample in the packed format, to test and explore the world without the real data.

It has three small kitchens and a fourth for worked examples, with every legal action in every state
along a scripted playthrough, as in the real data. It is not the published data.
    games = list(sample_games())
    games[0]["transitions"][0]["a"] == "take spoon (ID: 4)"
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

ITEMS = {
    "made-tea": ("spoon", "cup"),
    "made-soup": ("ladle", "carrot", "bowl"),
    "made-toast": ("knife", "bread"),
    "dishwasher": ("plate", "fork"),
}
"""Game -> what is in its chest. `dishwasher` is for worked examples, as in the real data."""
SAMPLE_RULES = {
    "object": (
        "Object: Box\nProperties:\n- A box holds items. It is open or closed (isOpen).\n"
        "==========\n"
        "Object: Device\nProperties:\n- A device is on or off (isOn).\n"
        "- Per tick, a device that is on gets 10 degrees hotter (temperature)."
    ),
    "action": (
        "open, close: Description: open or close the chest\n"
        "turn on, turn off: Description: switch the stove\n"
        "take, put: Description: move an item\nRules:\n1. A closed chest gives and takes nothing.\n"
        "eat: Description: eat everything that the agent holds. Crumbs are left of each item.\n"
        "wait, look: Description: do nothing"
    ),
    "score": (
        "The player gets one point for each item that is eaten.\n"
        "The player wins the game when two items are eaten."
    ),
}
"""Kind -> rules, the same for all games of the sample."""
AGENT = 0
ROOM = 1
CHEST = 2
STOVE = 3
FIRST_ITEM = 4
Objects = dict[int, dict[str, Any]]


def sample_games() -> Iterator[dict[str, Any]]:
    """Yield the games in the packed format."""
    return (_game(name, items) for name, items in ITEMS.items())


def _game(name: str, items: tuple[str, ...]) -> dict[str, Any]:
    objects = _initial_objects(items)
    states: list[dict[str, Any]] = []
    transitions: list[dict[str, Any]] = []
    script = _script(items)
    for index, scripted_action in enumerate(script):
        states.append(
            {
                "objects": list(copy.deepcopy(objects).values()),
                "max_uuid": FIRST_ITEM + len(items) + 1,
                "score": _score(objects),
                "task": _task(name),
                "last_action": script[index - 1] if index else "",
            }
        )
        for action in _legal(objects):
            transitions.append(_transition(len(transitions), index, objects, action))
        objects = _tick(_act(objects, scripted_action))
    return {"game": name, "states": states, "transitions": transitions}


def _task(name: str) -> str:
    kind, _, thing = name.partition("-")
    return f"Make {thing}." if kind == "made" else "Empty the dishwasher."


def _script(items: tuple[str, ...]) -> list[str]:
    takes = [f"take {item} (ID: {FIRST_ITEM + index})" for index, item in enumerate(items)]
    return [
        f"open chest (ID: {CHEST})",
        f"turn on stove (ID: {STOVE})",
        "wait",
        *takes,
        "wait",
        "eat",
        "wait",
    ]


def _transition(number: int, state: int, objects: Objects, action: str) -> dict[str, Any]:
    acted = _act(objects, action)
    ticked = _tick(acted)
    return {
        "id": number,
        "s": state,
        "a": action,
        "act": _patch(objects, acted),
        "tick": _patch(acted, ticked),
        "score": _score(ticked),
        "split": "test" if (number * 7 + state) % 5 == 0 else "train",
    }


def _initial_objects(items: tuple[str, ...]) -> Objects:
    contents = [f"{item} (ID: {FIRST_ITEM + index})" for index, item in enumerate(items)]
    objects = [
        _object(AGENT, "agent", "Agent", [], eaten=0),
        _object(ROOM, "room", "World", ["agent (ID: 0)", "chest (ID: 2)", "stove (ID: 3)"]),
        _object(CHEST, "chest", "Box", contents, isOpen=False),
        _object(STOVE, "stove", "Device", [], isOn=False, temperature=20.0),
    ]
    for index, item in enumerate(items):
        objects.append(_object(FIRST_ITEM + index, item, "Item", [], isMoveable=True))
    return {obj["uuid"]: obj for obj in objects}


def _object(
    uuid: int, name: str, kind: str, contains: list[str], **properties: Any
) -> dict[str, Any]:
    return {
        "name": f"{name} (ID: {uuid})",
        "uuid": uuid,
        "type": kind,
        "properties": properties,
        "contains": contains,
    }


def _legal(objects: Objects) -> list[str]:
    names = {uuid: obj["name"] for uuid, obj in objects.items()}
    items = [names[uuid] for uuid in names if uuid >= FIRST_ITEM]
    uses = [f"{verb} {names[CHEST]}" for verb in ("open", "close")]
    uses += [f"{verb} {names[STOVE]}" for verb in ("turn on", "turn off")]
    moves = [
        f"put {item} in {names[holder]}"
        for item, holder in itertools.product(items, (ROOM, CHEST, STOVE))
    ]
    return [f"take {item}" for item in items] + uses + moves + ["wait", "look", "eat"]


def _act(objects: Objects, action: str) -> Objects:
    after = copy.deepcopy(objects)
    agent = after[AGENT]
    verb = action.split()[0]
    if verb in ("open", "close"):
        after[CHEST]["properties"]["isOpen"] = verb == "open"
    elif verb == "turn":
        after[STOVE]["properties"]["isOn"] = action.startswith("turn on")
    elif verb in ("take", "put"):
        item, _, holder = action.partition(" ")[2].partition(" in ")
        _move(after, item, holder or agent["name"])
    elif verb == "eat":
        for name in list(agent["contains"]):
            _eat(after, name)
    return after


def _move(objects: Objects, item: str, holder: str) -> None:
    source = next(obj for obj in objects.values() if item in obj["contains"])
    target = next(obj for obj in objects.values() if obj["name"] == holder)
    chest = objects[CHEST]
    blocked = not chest["properties"]["isOpen"] and (source is chest or target is chest)
    if not blocked and source is not target:
        source["contains"].remove(item)
        target["contains"].append(item)


def _eat(objects: Objects, name: str) -> None:
    """Remove an object and put crumbs in its place, so that the sample creates objects too."""
    agent = objects[AGENT]
    uuid = next(obj["uuid"] for obj in objects.values() if obj["name"] == name)
    crumbs = _object(uuid + 20, "crumbs", "Item", [], isMoveable=False)
    agent["contains"].remove(name)
    agent["contains"].append(crumbs["name"])
    agent["properties"]["eaten"] += 1
    del objects[uuid]
    objects[uuid + 20] = crumbs


def _tick(objects: Objects) -> Objects:
    after = copy.deepcopy(objects)
    if after[STOVE]["properties"]["isOn"]:
        after[STOVE]["properties"]["temperature"] += 10.0
    return after


def _score(objects: Objects) -> dict[str, Any]:
    eaten = objects[AGENT]["properties"]["eaten"]
    return {"score": eaten, "gameOver": eaten > 1, "gameWon": eaten > 1}


def _patch(before: Mapping[int, Any], after: Mapping[int, Any]) -> dict[str, Any]:
    modified = [obj for uuid, obj in after.items() if before.get(uuid) != obj]
    return {
        "modified": copy.deepcopy(modified),
        "removed": [uuid for uuid in before if uuid not in after],
    }
