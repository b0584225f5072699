"""Views of states and answers: a short text format (`compact`) or JSON (`json`).

`read_reply` accepts both formats, whichever view is in use, as a difference or as a whole state.
Both are parsed into the same things, and every reward is computed on things.
    view = view_of("json")
    answer = view.answer(game, before, after, whole=False)
    read_reply(answer, game, before) == after
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from terrella.core.types import Observation, State, Text, show_text
from terrella.verify.state import parse_state
from terrella.worlds.bytesized32 import compact
from terrella.worlds.bytesized32.things import TYPE, Things, objects_of, things_of

_OBJECT_TYPES = {"name": str, "uuid": int, "type": str, "properties": dict, "contains": list}
_REQUIRED = {"modified", "removed"}
_ALLOWED = {"modified", "removed", "score"}


@dataclass(frozen=True)
class GameView:
    """A format of states and answers."""

    name: str
    legend: str
    whole_legend: str
    state: Callable[[str, Things], Observation]
    difference: Callable[[Things, Things], Observation]

    def answer(self, game: str, before: Things, after: Things, *, whole: bool) -> Observation:
        """The correct answer: the whole state after, or what changed."""
        return self.state(game, after) if whole else self.difference(before, after)


def view_of(name: str) -> GameView:
    return VIEWS[name]


def read_before(shown: Observation) -> tuple[str, Things]:
    """Parse the state of a query. We rendered it ourselves, so a failure is a bug."""
    text = show_text(shown)
    if not text.startswith("{"):
        return compact.read_state(text)
    state = parse_state(text)
    return state["game"], _read_whole(state["game_state"])


def read_reply(reply: Observation, game: str, before: Things) -> Things:
    """Parse a reply (untrusted) into the state that it predicts.

    Raises:
        ValueError: The reply cannot be read.
    """
    text = show_text(reply).strip()  # a line of a state has no edge that could matter
    if text.startswith("{"):
        return _read_json(parse_state(text), before)
    if text.startswith(f"{game};"):
        return _with_types(compact.read_state(text)[1], before)
    return compact.read_difference(text, before)


def _with_types(after: Things, before: Things) -> Things:
    """Add the types, which the compact format leaves out, from the state before."""
    return {
        key: {TYPE: before[key][TYPE], **thing} if TYPE in before.get(key, ()) else thing
        for key, thing in after.items()
    }


# --- JSON, in the games' own format ---------------------------------------------------------------


def _json_state(game: str, things: Things) -> Observation:
    objects, score = objects_of(things)
    return State.of({"game": game, "game_state": [*objects, score]})


def _json_difference(before: Things, after: Things) -> Observation:
    """Whole objects that are new or differ, removed uuids, and the score if it differs."""
    old, old_score = objects_of(before)
    new, new_score = objects_of(after)
    known = {obj["uuid"]: obj for obj in old}
    return State.of(
        {
            "modified": [obj for obj in new if known.get(obj["uuid"]) != obj],
            "removed": sorted(known.keys() - {obj["uuid"] for obj in new}),
            "score": new_score if new_score != old_score else {},
        }
    )


def _read_json(reply: Any, before: Things) -> Things:
    """Parse a difference or a whole state in the official format."""
    if isinstance(reply, dict) and "game_state" in reply:
        return _read_whole(reply["game_state"])
    if not isinstance(reply, dict) or not _REQUIRED <= reply.keys() <= _ALLOWED:
        raise ValueError(
            "neither a difference (modified, removed, score) nor a whole state (game_state)"
        )
    objects, score = objects_of(before)
    known = {obj["uuid"]: obj for obj in objects}
    modified = _list_of(reply, "modified")
    removed = _list_of(reply, "removed")
    if any(type(uuid) is not int or uuid not in known for uuid in removed):
        raise ValueError("removes an object that does not exist")
    after = known | {_checked(obj)["uuid"]: obj for obj in modified}
    remaining = [after[uuid] for uuid in after if uuid not in set(removed)]
    return _things(remaining, _checked_score(reply.get("score") or score))


def _list_of(reply: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(reply[name], list):
        raise ValueError(f"{name} is not a list")
    return list(reply[name])


def _read_whole(game_state: Any) -> Things:
    if not isinstance(game_state, list) or not game_state:
        raise ValueError("game_state is not a list")
    *objects, score = game_state
    return _things([_checked(obj) for obj in objects], _checked_score(score))


def _things(objects: list[Any], score: dict[str, Any]) -> Things:
    names = {obj["name"] for obj in objects}
    if len({obj["uuid"] for obj in objects}) != len(objects):
        raise ValueError("a uuid is given twice")
    for obj in objects:
        for name in obj["contains"]:
            if name not in names:
                raise ValueError(f"contains an object that does not exist: {name!r}")
    return things_of(objects, score)


def _checked(obj: Any) -> dict[str, Any]:
    """Check the shape of an object in a reply; ValueError if it is wrong."""
    if not isinstance(obj, dict) or obj.keys() != _OBJECT_TYPES.keys():
        raise ValueError(f"an object needs {', '.join(_OBJECT_TYPES)}, and nothing else")
    for name, kind in _OBJECT_TYPES.items():
        if type(obj[name]) is not kind:
            raise ValueError(f"{name} of an object must be a {kind.__name__}")
    if obj["uuid"] < 0:
        raise ValueError("a uuid cannot be negative")
    if any(not isinstance(name, str) for name in obj["contains"]):
        raise ValueError("contains must list names")
    if any(name.startswith(":") for name in obj["properties"]):
        raise ValueError("a property cannot begin with a colon")
    return obj


def _checked_score(score: Any) -> dict[str, Any]:
    if not isinstance(score, dict):
        raise ValueError("the score must be an object")
    if any(isinstance(value, dict | list) for value in score.values()):
        raise ValueError("the score must have plain values")
    return score


VIEWS = {
    "compact": GameView(
        "compact",
        'A state is the game, then `#number"name"<where property=value ...` for each object, '
        "then the score, separated by `;`. Reply with what changes, in the same form: "
        "`#3<#0 isOn=true` (moved into #0, switched on), `-#5` (gone), "
        '`+#9"ice":"Ice"<#3 ...` (new), `property=!` (no longer there), '
        "or `=` when nothing changes.",
        "Reply with the whole state after it, in the same form.",
        lambda game, things: Text(compact.show_state(game, things)),
        lambda before, after: Text(compact.show_difference(before, after)),
    ),
    "json": GameView(
        "json",
        "A state is JSON: `game_state` lists the objects, and the score last. "
        "Reply with JSON that has three keys: "
        '"modified" (a list of all objects that are new or changed, each whole), '
        '"removed" (a list of uuids) and '
        '"score" (the new score, or {} when it does not change).',
        "A state is JSON: `game_state` lists the objects, and the score last. "
        "Reply with the whole state in this form.",
        _json_state,
        _json_difference,
    ),
}
