"""The text form of a game's facts and of their changes, and the reward of predicting them.

A state is written `at P r0;in o1 c0;open c0`; a change is `+at P r1;-at P r0`, or `=` when nothing
changes. Of two facts that imply each other (`north_of r1 r0`, `south_of r0 r1`) one is written.
    view = FactView()
    view.show(Change(frozenset({"at P r1"}), frozenset({"at P r0"})))  # Text("+at P r1;-at P r0")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from terrella.core.config import Configurable
from terrella.core.types import Observation, Text, Verdict, show_text
from terrella.verify.properties import reward
from terrella.verify.text import refuse_unread
from terrella.worlds.textworld.games import Fact, Facts

NOTHING = "="
MAX_FACTS = 500
INVERSES = {"south_of": "north_of", "west_of": "east_of"}
"""Relation -> its inverse, from which it follows; it is not written when the inverse holds."""

_BOTH_WAYS = {**INVERSES, **{value: key for key, value in INVERSES.items()}, "free": "free"}


@dataclass(frozen=True)
class GameScene:
    """A game and the facts that hold in it now."""

    number: int
    rooms: int
    objects: int
    facts: Facts


@dataclass(frozen=True)
class Change:
    """The facts that a step made true, and those that it made false."""

    added: Facts
    removed: Facts


class FactView:
    """Shows scenes and changes as one line of facts."""

    legend = (
        "A state is a list of facts, separated by `;`. P is the player, I the inventory, r a room, "
        "d a door, c a container, s a supporter, o an object, k a key, f food."
    )
    change_legend = (
        "Reply with the facts that become true (`+fact`) and false (`-fact`), or `=` for none."
    )

    def show(self, state: GameScene | Change) -> Observation:
        """Write the line; a scene begins with its number and size, so that it can be read back."""
        if isinstance(state, Change):
            return Text(_signed(state) or NOTHING)
        head = f"{state.number}/{state.rooms}/{state.objects}"
        return Text(f"{head};" + ";".join(written_facts(state.facts)))

    def read(self, observation: Observation) -> GameScene | Change | None:
        """Read a scene or a change, blanks around it ignored; None for any other text."""
        text = show_text(observation).strip()
        try:
            head, *facts = text.split(";")
            if text == NOTHING or (text and text[0] in "+-"):
                return read_change(text)
            number, rooms, objects = map(_digits, head.split("/"))
            return GameScene(number, rooms, objects, with_implied(_facts(facts)))
        except ValueError:
            return None


def _inverse(fact: Fact) -> Fact | None:
    """The equivalent fact with its arguments swapped, if the relation has an inverse."""
    name, *things = fact.split(" ")
    if len(things) != 2:
        return None
    relation = _BOTH_WAYS.get(name)
    return relation and f"{relation} {things[1]} {things[0]}"


def written_facts(facts: Facts) -> list[Fact]:
    """The facts that are written, sorted; of an inverse pair, only the first by name."""
    written = []
    for fact in facts:
        inverse = _inverse(fact)
        if inverse not in facts or fact <= str(inverse):
            written.append(fact)
    return sorted(written)


def with_implied(facts: Facts) -> Facts:
    """Written facts together with those that follow from them."""
    return facts | {inverse for fact in facts if (inverse := _inverse(fact))}


def _digits(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"not a number: {text[:20]!r}")
    return int(text)


def _signed(change: Change) -> str:
    """Write a change; what becomes true comes first, as it says the most."""
    return ";".join(
        [f"+{fact}" for fact in written_facts(change.added)]
        + [f"-{fact}" for fact in written_facts(change.removed)]
    )


def read_change(text: str) -> Change:
    """Read a written change; ValueError when the text is not one."""
    if text == NOTHING:
        return Change(frozenset(), frozenset())
    parts = text.split(";")
    if any(part[:1] not in ("+", "-") for part in parts):
        raise ValueError("every fact of a change needs a sign, + or -")
    added = _facts([part[1:] for part in parts if part[0] == "+"])
    removed = _facts([part[1:] for part in parts if part[0] == "-"])
    if len(added) + len(removed) != len(parts) or added & removed:
        raise ValueError("a fact is given twice")
    return Change(with_implied(added), with_implied(removed))


def _facts(facts: list[str]) -> Facts:
    if len(facts) > MAX_FACTS or len(set(facts)) != len(facts):
        raise ValueError(f"more than {MAX_FACTS} facts, or one is given twice")
    for fact in facts:
        words = fact.split(" ")
        if not 2 <= len(words) <= 4 or not all(map(_is_word, words)):
            raise ValueError(f"not a fact: {fact[:40]!r}")
    return frozenset(facts)


def _is_word(text: str) -> bool:
    return text.isascii() and text.replace("_", "").isalnum()


class FactReward(Configurable):
    """Compares the facts after a step; a reply is a change or a whole state."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """The name of a reward of `verify/properties.py`."""

        reward: Literal["exact", "task_specific", "f1"] = "exact"

    config: Config

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """Score the facts to which the reply leads."""
        refused = refuse_unread(show_text(reply), show_text(truth), show_text(before))
        if refused is not None:
            return refused
        view = FactView()
        start = view.read(before)
        true_result = view.read(truth)
        prediction = view.read(reply)
        if not isinstance(start, GameScene) or true_result is None:
            raise ValueError("`before` is not a scene, or `truth` cannot be read")
        predicted_facts = None if prediction is None else _apply(prediction, start)
        if predicted_facts is None:
            return Verdict.unparsable("neither a list of facts nor a change of this state")
        true_facts = _apply(true_result, start)
        assert true_facts is not None
        return reward(
            self.config.reward,
            _as_properties(start.facts),
            _as_properties(predicted_facts),
            _as_properties(true_facts),
        )


def _as_properties(facts: Facts) -> dict[str, dict[str, str]]:
    return {fact: {"": ""} for fact in facts}


def _apply(result: GameScene | Change, start: GameScene) -> Facts | None:
    """The facts to which a reply leads.

    None when it removes a fact that does not hold, adds one that does, or is of another game.
    """
    if isinstance(result, GameScene):
        game = (result.number, result.rooms, result.objects)
        return result.facts if game == (start.number, start.rooms, start.objects) else None
    if not result.removed <= start.facts or result.added & start.facts:
        return None
    return (start.facts - result.removed) | result.added
