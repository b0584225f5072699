"""The verifier of this world: parse a reply into things and compare them (`verify/properties.py`).

`released` reproduces the reward of the code published with RLVR-World, with its faults: it ignores
new objects and invented properties, and often objects that should have been removed. It is here
for comparison, not for training.
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
        reward: Literal["exact", "task_specific", "f1", "released"] = "exact"

    config: Config

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Compare the reply with the truth; it may be in any view, a difference or a state."""
        refused = refuse_unread(show_text(reply), show_text(truth), show_text(before))
        if refused is not None:
            return refused
        game, start = read_before(before)
        true = read_reply(truth, game, start)
        try:
            predicted = read_reply(reply, game, start)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return Verdict.unparsable(f"not a state or a difference: {error}")
        if self.config.reward == "released":
            return released(start, predicted, true)
        return reward(self.config.reward, start, predicted, true)


def released(before: Things, predicted: Things, true: Things) -> Verdict:
    """The published binary reward.

    The part `task_specific` is the published reward of that name (at most 1.3).
    """
    old = {obj["uuid"]: obj for obj in objects_of(before)[0]}
    objects, score = objects_of(predicted)
    true_objects, true_score = objects_of(true)
    # The published code loses new objects when it assembles the predicted state.
    known = {obj["uuid"]: obj for obj in objects if obj["uuid"] in old}
    correct = []
    for obj in true_objects:
        correct += _correct(obj, known.get(obj["uuid"]))
    item_fraction = _fraction(correct)
    score_fraction = _fraction([score.get(key) == value for key, value in true_score.items()])
    exact = float(item_fraction == score_fraction == 1.0)
    changed = _correct_changes(old, true_objects, known)
    task_specific = 0.09 * item_fraction + 0.01 * score_fraction + 0.2 * exact
    task_specific += _fraction(changed) if changed else 0.0
    return Verdict.of(exact, task_specific=task_specific, items=item_fraction, score=score_fraction)


def _correct(true: Mapping[str, Any], predicted: Mapping[str, Any] | None) -> list[bool]:
    """Whether each property of a true object is predicted correctly, and then its contents.

    Further properties of the prediction are ignored.
    """
    if predicted is None:
        return [False]
    properties = predicted["properties"]
    correct = [
        name in properties and properties[name] == value
        for name, value in true["properties"].items()
    ]
    return [*correct, sorted(predicted["contains"]) == sorted(true["contains"])]


def _correct_changes(
    old: Mapping[int, Any], true_objects: list[dict[str, Any]], predicted: Mapping[int, Any]
) -> list[bool]:
    """Whether each property that changed in a surviving object is predicted correctly."""
    results = []
    for obj in true_objects:
        uuid = obj["uuid"]
        if uuid in old and uuid in predicted:
            unchanged = _correct(obj, old[uuid])
            correct = _correct(obj, predicted[uuid])
            results += [ok for ok, same in zip(correct, unchanged, strict=True) if not same]
    return results


def _fraction(correct: list[bool]) -> float:
    return sum(correct) / len(correct) if correct else 1.0
