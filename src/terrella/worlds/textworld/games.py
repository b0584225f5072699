"""Games made by Microsoft's TextWorld: rooms, things, a quest; their logic, stepped in Python, without compiling them.

A game is a pure function of its size and number. Making one takes a second or two, so it is kept in the user's cache as
JSON: first facts, what wins, the way to win, names. TextWorld's own rules say what can be done and what comes of it.
    game = load_game(Size(rooms=4, objects=8, quest=4), number=7); moves(game.facts)["go north"]
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from terrella.core.errors import MissingExtraError, WorldError

Fact = str
"""`at P r0`, `in o1 c0`, `open d0`: a relation and what it relates."""
Facts = frozenset[Fact]

COMMANDS = {
    "close/c": "close {c}", "close/d": "close {d}", "open/c": "open {c}", "open/d": "open {d}", "drop": "drop {o}",
    "eat": "eat {f}", "examine/I": "examine {o}", "examine/c": "examine {o}", "examine/d": "examine {d}",
    "examine/s": "examine {o}", "examine/t": "examine {t}", "go/east": "go east", "go/north": "go north",
    "go/south": "go south", "go/west": "go west", "insert": "insert {o} into {c}", "inventory": "inventory",
    "lock/c": "lock {c} with {k}", "lock/d": "lock {d} with {k}", "unlock/c": "unlock {c} with {k}",
    "unlock/d": "unlock {d} with {k}", "look": "look", "put": "put {o} on {s}", "take": "take {o}",
    "take/c": "take {o} from {c}", "take/s": "take {o} from {s}",
}  # fmt: skip
"""What a player types for each rule of TextWorld, with things by number."""
_VARIABLE = re.compile(r"([a-z]+)_([0-9]+)")


@dataclass(frozen=True)
class Size:
    """How large a game is."""

    rooms: int
    objects: int
    quest: int


@dataclass(frozen=True)
class Game:
    """One game: how it starts, what wins it, how to win it."""

    size: Size
    number: int
    facts: Facts
    wins: Facts
    """All of these hold when the quest is done."""
    walkthrough: tuple[str, ...]
    names: Mapping[str, str]
    """What the game calls its things: `o1` is "TextWorld style key"."""


def engine() -> Any:
    """TextWorld's modules, or the line that installs them."""
    try:
        import textworld
        import textworld.generator
        import textworld.logic
    except ImportError as error:
        raise MissingExtraError("text", "worlds of generated text games") from error
    return textworld


def cache_folder() -> Path:
    """Where made games are kept: $TERRELLA_CACHE, else the user's cache folder (no torch is needed to know it)."""
    base = os.environ.get("TERRELLA_CACHE")
    user = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "terrella"
    return (Path(base) if base else user) / "textworld"


@functools.lru_cache(maxsize=4096)
def load_game(size: Size, number: int) -> Game:
    """The game of this number, from the cache or made now; a file is whole or absent."""
    path = cache_folder() / f"{size.rooms}-{size.objects}-{size.quest}" / f"{number}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(_made(size, number)), "utf-8")
        fresh.rename(path)
    try:
        told = json.loads(path.read_text("utf-8"))
        return Game(size, number, frozenset(told["facts"]), frozenset(told["wins"]), tuple(told["walkthrough"]),
                    told["names"])  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise WorldError("textworld", f"{path} is not a game: {error}", "delete it, it will be made again") from error


def _made(size: Size, number: int) -> dict[str, Any]:
    textworld = engine()
    options = textworld.GameOptions()
    options.nb_rooms, options.nb_objects, options.quest_length = size.rooms, size.objects, size.quest
    options.seeds = {"map": number, "objects": number + 1, "quest": number + 2, "grammar": number + 3}
    game = textworld.generator.make_game(options)
    event = game.quests[0].win_events[-1]
    walk, facts = [], frozenset(map(fact_of, game.world.facts))
    state = facts
    for action in event.actions:  # TextWorld gives actions; what is typed for them is found by their effect
        after = frozenset(map(fact_of, action.added)) | (state - frozenset(map(fact_of, action.removed)))
        walk.append(next(command for command, result in moves(state).items() if result == after))
        state = after
    wins = sorted(fact_of(one) for one in event.condition.preconditions)
    names = {_short(key): info.name for key, info in game.infos.items() if info.name and _VARIABLE.fullmatch(key)}
    return {"size": asdict(size), "facts": sorted(facts), "wins": wins, "walkthrough": walk, "names": names}


def fact_of(proposition: Any) -> Fact:
    """A proposition of TextWorld as a short text: `in(o_1: o, c_0: c)` is `in o1 c0`."""
    return " ".join([proposition.name, *(_short(one.name) for one in proposition.arguments)])


def _short(name: str) -> str:
    return name.replace("_", "")


def _proposition(fact: Fact) -> Any:
    logic = engine().logic
    name, *things = fact.split(" ")
    variables = []
    for thing in things:
        kind, number = re.fullmatch(r"([A-Za-z]+)([0-9]*)", thing).groups()  # type: ignore[union-attr]
        variables.append(logic.Variable(f"{kind}_{number}", kind) if number else logic.Variable(kind, kind))
    return logic.Proposition(name, variables)


@functools.lru_cache(maxsize=100_000)
def moves(facts: Facts) -> dict[str, Facts]:
    """What can be typed here, and the facts it leads to. Looking leads to the same facts."""
    base = _knowledge()
    state = engine().logic.State(base.logic, [_proposition(fact) for fact in sorted(facts)])
    found: dict[str, Facts] = {}
    for rule in base.rules.values():
        for mapping in state.all_assignments(rule, base.types.constants_mapping):
            action = rule.instantiate(mapping)
            things = {place.name: _short(thing.name) for place, thing in mapping.items()}
            removed, added = (frozenset(map(fact_of, some)) for some in (action.removed, action.added))
            found[COMMANDS[rule.name].format(**things)] = (facts - removed) | added
    return found


@functools.cache
def _knowledge() -> Any:
    from textworld.generator.data import KnowledgeBase

    return KnowledgeBase.default()
