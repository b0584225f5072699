"""What a model is shown of a question and what it may answer, in few words (`compact`) or in JSON (`json`).

A reply is read in either, whichever it is: as a difference (what changed) or as a whole state. Both views lead back to
the same things, so every reward is computed on things. The hook that matters is `read_reply`.
    view = view_of("json"); text = view.answer(before, after, whole=False); read_reply(text, before) == after
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from terrella.core.types import Observation, State, Text, show_text
from terrella.verify.state import parse_state
from terrella.worlds.bytesized32 import compact
from terrella.worlds.bytesized32.things import TYPE, Things, objects_of, things_of

_SHAPE = {"name": str, "uuid": int, "type": str, "properties": dict, "contains": list}


@dataclass(frozen=True)
class GameView:
    """One way to write states and answers."""

    name: str
    legend: str
    whole_legend: str
    state: Callable[[str, Things], Observation]
    difference: Callable[[Things, Things], Observation]

    def answer(self, game: str, before: Things, after: Things, *, whole: bool) -> Observation:
        """The answer that is right: the whole state after, or what changed."""
        return self.state(game, after) if whole else self.difference(before, after)


def view_of(name: str) -> GameView:
    """The view of this name."""
    return VIEWS[name]


def read_before(shown: Observation) -> tuple[str, Things]:
    """Game and things of a question; it is ours, so that anything else is a bug."""
    text = show_text(shown)
    if not text.startswith("{"):
        return compact.read_state(text)
    told = parse_state(text)
    return told["game"], _read_whole(told["game_state"])


def read_reply(reply: Observation, game: str, before: Things) -> Things:
    """The state that a reply says comes next; ValueError when it cannot be read (it is untrusted)."""
    text = show_text(reply)
    if text.lstrip().startswith("{"):
        return _read_json(parse_state(text), before)
    if text.startswith(f"{game};"):
        return _with_types(compact.read_state(text)[1], before)
    return compact.read_difference(text, before)


def _with_types(after: Things, before: Things) -> Things:
    """Few words leave types out where they follow from the state before."""
    return {key: {TYPE: before[key][TYPE], **thing} if TYPE in before.get(key, ()) else thing
            for key, thing in after.items()}  # fmt: skip


# --- JSON, as the games write it ----------------------------------------------------------------------------------


def _json_state(game: str, things: Things) -> Observation:
    objects, score = objects_of(things)
    return State.of({"game": game, "game_state": [*objects, score]})


def _json_difference(before: Things, after: Things) -> Observation:
    """Whole objects that are new or differ, numbers that are gone, and the score if it differs."""
    (old, old_score), (new, new_score) = objects_of(before), objects_of(after)
    known = {one["uuid"]: one for one in old}
    gone = sorted(known.keys() - {one["uuid"] for one in new})
    score = new_score if new_score != old_score else {}
    return State.of({"modified": [one for one in new if known.get(one["uuid"]) != one], "removed": gone,
                     "score": score})  # fmt: skip


def _read_json(told: Any, before: Things) -> Things:
    """A difference, or a whole state, in the official form."""
    if isinstance(told, dict) and "game_state" in told:
        return _read_whole(told["game_state"])
    if not isinstance(told, dict) or not {"modified", "removed"} <= told.keys() <= {"modified", "removed", "score"}:
        raise ValueError("neither a difference (modified, removed, score) nor a whole state (game_state)")
    objects, score = objects_of(before)
    known = {one["uuid"]: one for one in objects}
    modified, removed = (_listed(told, name) for name in ("modified", "removed"))
    if any(type(uuid) is not int or uuid not in known for uuid in removed):
        raise ValueError("removes what is not there")
    after = known | {_checked(one)["uuid"]: one for one in modified}
    kept = [after[uuid] for uuid in after if uuid not in set(removed)]
    return _things(kept, _checked_score(told.get("score") or score))


def _listed(told: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(told[name], list):
        raise ValueError(f"{name} is not a list")
    return list(told[name])


def _read_whole(told: Any) -> Things:
    if not isinstance(told, list) or not told:
        raise ValueError("game_state is not a list")
    *objects, score = told
    return _things([_checked(one) for one in objects], _checked_score(score))


def _things(objects: list[Any], score: dict[str, Any]) -> Things:
    names = {one["name"] for one in objects}
    if len({one["uuid"] for one in objects}) != len(objects):
        raise ValueError("a uuid is given twice")
    strangers = [name for one in objects for name in one["contains"] if name not in names]
    if strangers:
        raise ValueError(f"contains what is not there: {strangers[0]!r}")
    return things_of(objects, score)


def _checked(one: Any) -> dict[str, Any]:
    """An object of a reply, or ValueError."""
    if not isinstance(one, dict) or one.keys() != _SHAPE.keys():
        raise ValueError(f"an object has {', '.join(_SHAPE)}, and nothing else")
    if any(type(one[name]) is not kind for name, kind in _SHAPE.items()) or one["uuid"] < 0:
        raise ValueError("an object has a part of another kind")
    if any(not isinstance(name, str) for name in one["contains"]) or any(
        key.startswith(":") for key in one["properties"]
    ):
        raise ValueError("contents are names, and no property begins with a colon")
    return one


def _checked_score(score: Any) -> dict[str, Any]:
    if not isinstance(score, dict) or any(isinstance(value, dict | list) for value in score.values()):
        raise ValueError("the score is an object of plain values")
    return score


VIEWS = {
    "compact": GameView(
        "compact",
        'A state is the game, then `#number"name"<where property=value ...` for each object, then the score, separated '
        "by `;`. Reply with what changes, in the same form: `#3<#0 isOn=true` (moved into #0, switched on), `-#5` "
        '(gone), `+#9"ice":"Ice"<#3 ...` (new), `property=!` (no longer there), or `=` when nothing changes.',
        "Reply with the whole state after it, in the same form.",
        lambda game, things: Text(compact.show_state(game, things)),
        lambda before, after: Text(compact.show_difference(before, after)),
    ),
    "json": GameView(
        "json",
        'A state is JSON: `game_state` lists the objects, and the score last. Reply with JSON that has three keys: '
        '"modified" (a list of all objects that are new or changed, each whole), "removed" (a list of uuids) and '
        '"score" (the new score, or {} when it does not change).',
        'A state is JSON: `game_state` lists the objects, and the score last. Reply with the whole state in this form.',
        _json_state,
        _json_difference,
    ),
}  # fmt: skip
