"""A made sample in the packed format, for tests and for looking around without the data: three small kitchens.

Every legal action in every state along a scripted play, as the real data were crawled. It is not the published data.
    games = list(sample_games()); games[0]["transitions"][0]["a"] == "take spoon (ID: 3)"
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

ITEMS = {"made-tea": ("spoon", "cup"), "made-soup": ("ladle", "carrot", "bowl"), "made-toast": ("knife", "bread")}
ROOM, AGENT, CHEST, STOVE, FIRST = 1, 0, 2, 3, 4
Objects = dict[int, dict[str, Any]]


def sample_games() -> Iterator[dict[str, Any]]:
    """The games, packed."""
    return (_game(name, items) for name, items in ITEMS.items())


def _game(name: str, items: tuple[str, ...]) -> dict[str, Any]:
    objects = _start(items)
    states: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    gold = [f"open chest (ID: {CHEST})", f"turn on stove (ID: {STOVE})", "wait"]
    gold += [f"take {item} (ID: {FIRST + k})" for k, item in enumerate(items)] + ["wait", "eat", "wait"]
    for place, done in enumerate(gold):
        score = _score(objects)
        last = gold[place - 1] if place else ""
        states.append({"objects": list(copy.deepcopy(objects).values()), "max_uuid": FIRST + len(items) + 1,
                       "score": score, "task": f"Make {name[5:]}.", "last_action": last})  # fmt: skip
        for action in _legal(objects):
            acted = _act(objects, action)
            ticked = _tick(acted)
            split = "test" if (len(rows) * 7 + place) % 5 == 0 else "train"
            rows.append({"id": len(rows), "s": place, "a": action, "act": _between(objects, acted),
                         "tick": _between(acted, ticked), "score": _score(ticked), "split": split})  # fmt: skip
        objects = _tick(_act(objects, done))
    return {"game": name, "states": states, "transitions": rows}


def _start(items: tuple[str, ...]) -> Objects:
    chest = _thing(CHEST, "chest", "Box", [f"{item} (ID: {FIRST + k})" for k, item in enumerate(items)], isOpen=False)
    things = [_thing(FIRST + k, item, "Item", [], isMoveable=True) for k, item in enumerate(items)]
    stove = _thing(STOVE, "stove", "Device", [], isOn=False, temperature=20.0)
    room = _thing(ROOM, "room", "World", ["agent (ID: 0)", "chest (ID: 2)", "stove (ID: 3)"])
    return {one["uuid"]: one for one in (_thing(AGENT, "agent", "Agent", [], eaten=0), room, chest, stove, *things)}


def _thing(uuid: int, name: str, kind: str, contains: list[str], **properties: Any) -> dict[str, Any]:
    return {"name": f"{name} (ID: {uuid})", "uuid": uuid, "type": kind, "properties": properties, "contains": contains}


def _legal(objects: Objects) -> list[str]:
    names = {uuid: one["name"] for uuid, one in objects.items()}
    items = [names[uuid] for uuid in names if uuid >= FIRST]
    verbs = [f"{verb} {names[CHEST]}" for verb in ("open", "close")]
    verbs += [f"{verb} {names[STOVE]}" for verb in ("turn on", "turn off")]
    moves = [f"put {item} in {names[holder]}" for item, holder in itertools.product(items, (ROOM, CHEST, STOVE))]
    return [f"take {item}" for item in items] + verbs + moves + ["wait", "look", "eat"]


def _act(objects: Objects, action: str) -> Objects:
    after = copy.deepcopy(objects)
    chest, stove, agent = after[CHEST], after[STOVE], after[AGENT]
    verb = action.split()[0]
    if verb in ("open", "close"):
        chest["properties"]["isOpen"] = verb == "open"
    elif verb == "turn":
        stove["properties"]["isOn"] = action.startswith("turn on")
    elif verb in ("take", "put"):
        item, _, holder = action.partition(" ")[2].partition(" in ")
        _move(after, item, holder or agent["name"])
    elif verb == "eat":
        for name in list(agent["contains"]):  # what is eaten is gone; crumbs appear in its place
            _eat(after, name)
    return after


def _move(objects: Objects, item: str, holder: str) -> None:
    source = next(one for one in objects.values() if item in one["contains"])
    target = next(one for one in objects.values() if one["name"] == holder)
    shut = any(one["uuid"] == CHEST and not one["properties"]["isOpen"] for one in (source, target))
    if not shut and source is not target:
        source["contains"].remove(item)
        target["contains"].append(item)


def _eat(objects: Objects, name: str) -> None:
    agent = objects[AGENT]
    uuid = next(one["uuid"] for one in objects.values() if one["name"] == name)
    crumbs = _thing(uuid + 20, "crumbs", "Item", [], isMoveable=False)
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


def _between(before: Mapping[int, Any], after: Mapping[int, Any]) -> dict[str, Any]:
    modified = [one for uuid, one in after.items() if before.get(uuid) != one]
    return {"modified": copy.deepcopy(modified), "removed": [uuid for uuid in before if uuid not in after]}
