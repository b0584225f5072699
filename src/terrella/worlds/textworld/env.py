"""TextWorld: generated text games with ground-truth facts, as an agent's world and as a question for a world model.

`answer="whole"` plays: the quest ends the episode. `answer="difference"` asks: one step from somewhere in a game, and
what is seen after it are the facts that came and went. Every game is new, so that remembering rows cannot win.
    world = TextWorld.Config(rooms=(2, 6), answer="difference").build()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from terrella.core.errors import ConfigError
from terrella.core.protocols import View
from terrella.core.types import Outcome
from terrella.core.world import StateWorld, World
from terrella.worlds.textworld.facts import Change, FactReward, FactView, Scene
from terrella.worlds.textworld.games import Game, Size, engine, load_game, moves

LOOKING = ("examine", "look", "inventory")
WORDS = (
    "at ", "in ", "on ", "open ", "closed ", "locked ", "match ", "free ", "link ", "edible ", "eaten ",
    "east_of ", "west_of ", "north_of ", "south_of ", ";+", ";-", "P ", " P", " I",
    "go east", "go west", "go north", "go south", "take ", " from ", "open ", "close ", "unlock ", "lock ", " with ",
    "insert ", " into ", "put ", " on ", "drop ", "eat ", "examine ", "look", "inventory",
)  # fmt: skip
KINDS = {"r": 12, "d": 8, "c": 8, "s": 8, "o": 12, "k": 8, "f": 8}


class TextWorld(StateWorld[Any]):
    """Generated text games: facts, commands, a quest; fresh instances without end."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """How large the games are, how many, and what is asked."""

        max_steps: int = 20
        view: str = "facts"
        rooms: tuple[int, int] = (2, 6)
        objects: tuple[int, int] = (3, 8)
        quest: int = 3
        games: int = 40
        """Different games; each takes a second or two to make, once."""
        first: int = 0
        """The number of the first game: another one gives other games."""
        answer: Literal["whole", "difference"] = "whole"
        wander: int = 8
        """difference: at most so many random steps lead to where the question is asked."""
        reward: Literal["exact", "task_specific", "f1"] = "exact"

    config: Config
    name = "textworld"
    rules = "A text game. Do what the quest asks for."
    view_names = ("facts",)

    def __init__(self, config: Config) -> None:
        """Needs the extra `text`."""
        engine()
        if not 1 <= config.rooms[0] <= config.rooms[1] or not 1 <= config.objects[0] <= config.objects[1]:
            raise ConfigError("textworld", f"rooms {config.rooms} and objects {config.objects} are (least, most)")
        self.verifier = FactReward.Config(reward=config.reward).build()
        super().__init__(config)

    def make_view(self, name: str) -> View[Any]:
        """One line of facts."""
        return FactView()

    def game(self, number: int, rooms: int, objects: int) -> Game:
        """The game of a scene."""
        return load_game(Size(rooms, objects, self.config.quest), number)

    def draw(self, rng: np.random.Generator) -> Scene:
        """The start of a game, or, for a question, somewhere in one."""
        number = self.config.first + int(rng.integers(self.config.games))
        sizes = np.random.default_rng(number)  # a game's size belongs to its number
        rooms, objects = (int(sizes.integers(low, high + 1)) for low, high in (self.config.rooms, self.config.objects))
        facts = self.game(number, rooms, objects).facts
        if self.config.answer == "difference":
            for _ in range(int(rng.integers(self.config.wander + 1))):
                steps = [after for after in moves(facts).values() if after != facts]
                facts = steps[int(rng.integers(len(steps)))]
        return Scene(number, rooms, objects, facts)

    def key(self, state: Scene) -> Any:
        """The game: all that can be met in it is one instance, so that test games are new games."""
        return sorted(self.game(state.number, state.rooms, state.objects).facts)

    def legal(self, state: Scene | Change) -> tuple[str, ...]:
        """What TextWorld's rules allow; in a question also what they do not: then nothing happens."""
        if isinstance(state, Change):
            return ("look",)
        allowed = moves(state.facts)
        if self.config.answer == "whole":
            return tuple(sorted(allowed))
        doing = sorted(command for command in allowed if not command.startswith(LOOKING))
        return (*doing, *sorted(_tempting(state) - allowed.keys()), "look")

    def outcomes(self, state: Scene | Change, action: str) -> Sequence[Outcome]:
        """The facts after; the quest's own facts end the game."""
        if isinstance(state, Change):
            return [Outcome(state=state, terminated=True)]
        after = moves(state.facts).get(action, state.facts)
        if self.config.answer == "difference":
            change = Change(after - state.facts, state.facts - after)
            return [Outcome(state=change, terminated=True, success=True)]
        won = self.game(state.number, state.rooms, state.objects).wins <= after
        scene = Scene(state.number, state.rooms, state.objects, after)
        return [Outcome(state=scene, reward=float(won), terminated=won, success=won)]

    def expert(self, state: Scene | Change, steps_left: int, rng: np.random.Generator) -> str:
        """The next step of the walkthrough; off its path, breadth-first search for the quest's facts."""
        if isinstance(state, Change) or self.config.answer == "difference":
            return self.legal(state)[0]
        game = self.game(state.number, state.rooms, state.objects)
        facts = game.facts
        for command in game.walkthrough:
            if facts == state.facts:
                return command
            facts = moves(facts)[command]
        return _search(state.facts, game.wins)

    @property
    def instruction(self) -> str:
        """Rules, legend, and how to answer; the quest by what must hold."""
        scene = self.state
        told = [self.rules, FactView.legend]
        if self.config.answer == "difference":
            return "\n".join([*told, FactView.change_legend])
        wins = self.game(scene.number, scene.rooms, scene.objects).wins
        return "\n".join(
            [*told, f"Quest: bring about {'; '.join(sorted(wins))}.", f"Actions: {', '.join(self.actions())}."]
        )

    def words(self) -> tuple[str, ...]:
        """Relations, commands, things."""
        things = [f"{kind}{number}" for kind, most in KINDS.items() for number in range(most)]
        return (*dict.fromkeys(WORDS), *things, *(f"{thing} " for thing in things))


def _tempting(state: Scene) -> set[str]:
    """Commands that make sense here and may not be possible: every direction, the room's doors and containers."""
    room = next(fact.split(" ")[2] for fact in state.facts if fact.startswith("at P "))
    near = [fact.split(" ") for fact in state.facts if room in fact.split(" ")]
    things = {word for words in near for word in words[1:] if word[0] in "dc"}
    ways = {f"go {way}" for way in ("north", "east", "south", "west")}
    return ways | {f"{verb} {thing}" for verb in ("open", "close") for thing in things}


def _search(facts: frozenset[str], wins: frozenset[str], most: int = 3000) -> str:
    """The first step of a shortest way to the quest's facts; any step when none is found in reach."""
    queue, seen = [(facts, "")], {facts}
    for here, first in queue:
        for command, after in moves(here).items():
            if after in seen:
                continue
            if wins <= after:
                return first or command
            seen.add(after)
            queue.append((after, first or command))
        if len(seen) > most:
            break
    return next(iter(moves(facts)))
