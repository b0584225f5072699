"""What a model is shown of a game and what it may answer: facts, or the facts that come and go; and the reward.

A state is `at P r0;in o1 c0;open c0`; a difference is `+at P r1;-at P r0`, or `=` when nothing changes. Of two facts
that imply each other (`north_of r1 r0`, `south_of r0 r1`) one is written.
    read(show_change(before, after), before) == after
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
"""Relations that are only written when their inverse does not hold, and follow from it when it does."""


@dataclass(frozen=True)
class Scene:
    """A game and what holds in it now."""

    number: int
    rooms: int
    objects: int
    facts: Facts


@dataclass(frozen=True)
class Change:
    """What a step made true, and what it made false."""

    added: Facts
    removed: Facts


class FactView:
    """Scenes and changes as one line."""

    legend = (
        "A state is a list of facts, separated by `;`. P is the player, I the inventory, r a room, d a door, c a "
        "container, s a supporter, o an object, k a key, f food."
    )
    change_legend = "Reply with the facts that become true (`+fact`) and false (`-fact`), or `=` for none."

    def show(self, state: Scene | Change) -> Observation:
        """The line; a scene begins with its number, so that it can be read back."""
        if isinstance(state, Change):
            return Text(_signed(state) or NOTHING)
        return Text(f"{state.number}/{state.rooms}/{state.objects};" + ";".join(spoken(state.facts)))

    def read(self, observation: Observation) -> Scene | Change | None:
        """The scene or the change again; None for anything else."""
        text = show_text(observation)
        try:
            head, *facts = text.split(";")
            if text == NOTHING or (text and text[0] in "+-"):
                return read_change(text)
            number, rooms, objects = map(_digits, head.split("/"))
            return Scene(number, rooms, objects, implied(_facts(facts)))
        except ValueError:
            return None


def _inverse(fact: Fact) -> Fact | None:
    """The fact that says the same the other way round, if its relation has one."""
    name, *things = fact.split(" ")
    if len(things) != 2:
        return None
    other = {**INVERSES, **{value: key for key, value in INVERSES.items()}, "free": "free"}.get(name)
    return other and f"{other} {things[1]} {things[0]}"


def spoken(facts: Facts) -> list[Fact]:
    """The facts that are written: of an inverse pair, the first by name."""
    return sorted(fact for fact in facts if (inverse := _inverse(fact)) not in facts or fact <= str(inverse))


def implied(facts: Facts) -> Facts:
    """Written facts and those that follow from them."""
    return facts | {inverse for fact in facts if (inverse := _inverse(fact))}


def _digits(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"not a number: {text[:20]!r}")
    return int(text)


def _signed(change: Change) -> str:
    """What becomes true first: it says the most."""
    return ";".join([f"+{fact}" for fact in spoken(change.added)] + [f"-{fact}" for fact in spoken(change.removed)])


def read_change(text: str) -> Change:
    """A written change; ValueError when it is none."""
    if text == NOTHING:
        return Change(frozenset(), frozenset())
    parts = text.split(";")
    if any(part[:1] not in ("+", "-") for part in parts):
        raise ValueError("every fact of a change has a sign")
    added = _facts([part[1:] for part in parts if part[0] == "+"])
    removed = _facts([part[1:] for part in parts if part[0] == "-"])
    if len(added) + len(removed) != len(parts) or added & removed:
        raise ValueError("a fact is given twice")
    return Change(implied(added), implied(removed))


def _facts(facts: list[str]) -> Facts:
    if len(facts) > MAX_FACTS or len(set(facts)) != len(facts):
        raise ValueError("too many facts, or one twice")
    for fact in facts:
        words = fact.split(" ")
        if not 2 <= len(words) <= 4 or not all(word.isascii() and word.replace("_", "").isalnum() for word in words):
            raise ValueError(f"not a fact: {fact[:40]!r}")
    return frozenset(facts)


class FactReward(Configurable):
    """Compares the facts after a step: a reply is a change, or a whole state."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Which reward of `verify/properties.py`."""

        reward: Literal["exact", "task_specific", "f1"] = "exact"

    config: Config

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """The verdict on the facts that the reply leads to."""
        refused = refuse_unread(show_text(reply), show_text(truth), show_text(before))
        if refused is not None:
            return refused
        view = FactView()
        start, true, said = (view.read(seen) for seen in (before, truth, reply))
        if not isinstance(start, Scene) or true is None:
            raise ValueError("the question is not a scene, or the truth cannot be read")
        after = None if said is None else _after(said, start)
        if after is None:
            return Verdict.unparsable("neither a list of facts nor a change of this state")
        real = _after(true, start)
        assert real is not None
        return reward(self.config.reward, *({fact: {"": ""} for fact in facts} for facts in (start.facts, after, real)))


def _after(said: Scene | Change, start: Scene) -> Facts | None:
    """The facts that a reply leads to; None when it takes away or adds what it cannot, or is of another game."""
    if isinstance(said, Scene):
        same = (said.number, said.rooms, said.objects) == (start.number, start.rooms, start.objects)
        return said.facts if same else None
    if not said.removed <= start.facts or said.added & start.facts:
        return None
    return (start.facts - said.removed) | said.added
