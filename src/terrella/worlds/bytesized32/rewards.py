"""The verifier of this world: a reply is read back into things, then `verify/properties.py` compares them.

`released` scores as the code published with RLVR-World does, with its faults: it does not see new objects, does not
mind invented properties, and often does not mind what should be gone. It is here to show the difference, not to train.
    GameReward.Config(reward="task_specific").build().verify(reply, truth, before)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from terrella.core.config import Configurable
from terrella.core.types import Observation, Verdict, show_text
from terrella.verify.properties import reward
from terrella.verify.text import refuse_unread
from terrella.worlds.bytesized32.things import Things, objects_of
from terrella.worlds.bytesized32.views import read_before, read_reply


class GameReward(Configurable):
    """Compares states of text games."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Which reward."""

        reward: Literal["exact", "task_specific", "f1", "released"] = "exact"

    config: Config

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """How far the reply's state is the true one; replies in any view, differences and whole states alike."""
        refused = refuse_unread(show_text(reply), show_text(truth), show_text(before))
        if refused is not None:
            return refused
        game, start = read_before(before)
        true = read_reply(truth, game, start)
        try:
            said = read_reply(reply, game, start)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return Verdict.unparsable(f"not a state or a difference: {error}")
        if self.config.reward == "released":
            return released(start, said, true)
        return reward(self.config.reward, start, said, true)


def released(before: Things, predicted: Things, true: Things) -> Verdict:
    """The published binary reward; the part `task_specific` is the published one of that name (at most 1.3)."""
    said, real, old = (objects_of(things) for things in (predicted, true, before))
    # New objects are lost when the published code puts the state together.
    kept = {one["uuid"]: one for one in said[0] if one["uuid"] in {was["uuid"] for was in old[0]}}
    marks = [mark for one in real[0] for mark in _marks(one, kept.get(one["uuid"]))]
    item, score = _share(marks), _share([said[1].get(key) == value for key, value in real[1].items()])
    right = float(item == score == 1.0)
    found = _found(old[0], real[0], kept)
    parts = 0.09 * item + 0.01 * score + 0.2 * right + (_share(found) if found else 0.0)
    return Verdict.of(right, task_specific=parts, items=item, score=score)


def _marks(real: Mapping[str, Any], said: Mapping[str, Any] | None) -> list[bool]:
    """Right or wrong per property of a true object, and for its contents; what is said beyond them is not seen."""
    if said is None:
        return [False]
    marks = [
        key in said["properties"] and said["properties"][key] == value for key, value in real["properties"].items()
    ]
    return [*marks, sorted(said["contains"]) == sorted(real["contains"])]


def _found(old: list[dict[str, Any]], real: list[dict[str, Any]], kept: Mapping[int, Any]) -> list[bool]:
    """Of the properties that changed in surviving objects, which are right."""
    was = {one["uuid"]: one for one in old}
    marks = []
    for one in real:
        start, said = was.get(one["uuid"]), kept.get(one["uuid"])
        if start is not None and said is not None:
            changed = [not same for same in _marks(one, start)]
            marks += [mark for mark, counts in zip(_marks(one, said), changed, strict=True) if counts]
    return marks


def _share(marks: list[bool]) -> float:
    return sum(marks) / len(marks) if marks else 1.0
