"""TextWorld: generated text games with ground-truth facts, for agents and for world models.

With `answer="whole"` an agent plays a game until its quest is done. With `answer="difference"` an
episode is one step from somewhere in a game, and the observation after it lists the facts that
became true and false. Every game is new, so that memorizing examples does not help.
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
from terrella.worlds.textworld.facts import Change, FactReward, FactView, GameScene
from terrella.worlds.textworld.games import Game, Size, engine, load_game, successors

PASSIVE_COMMANDS = ("examine", "look", "inventory")
VOCABULARY = (
    "at ",
    "in ",
    "on ",
    "open ",
    "closed ",
    "locked ",
    "match ",
    "free ",
    "link ",
    "edible ",
    "eaten ",
    "east_of ",
    "west_of ",
    "north_of ",
    "south_of ",
    ";+",
    ";-",
    "P ",
    " P",
    " I",
    "go east",
    "go west",
    "go north",
    "go south",
    "take ",
    " from ",
    "open ",
    "close ",
    "unlock ",
    "lock ",
    " with ",
    "insert ",
    " into ",
    "put ",
    " on ",
    "drop ",
    "eat ",
    "examine ",
    "look",
    "inventory",
)
KINDS = {"r": 12, "d": 8, "c": 8, "s": 8, "o": 12, "k": 8, "f": 8}
"""Kind of thing -> how many of them get a token of their own."""


class TextWorld(StateWorld[Any]):
    """Generated text games with facts, commands and a quest; an endless supply of instances."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The size and number of games, and the form of the answer."""

        max_steps: int = 20
        view: str = "facts"
        rooms: tuple[int, int] = (2, 6)
        objects: tuple[int, int] = (3, 8)
        quest: int = 3
        games: int = 40
        """Number of different games; each takes a second or two to generate, once."""
        first: int = 0
        """The number of the first game; another number gives other games."""
        answer: Literal["whole", "difference"] = "whole"
        wander: int = 8
        """For `difference`: maximum number of random steps before the step to predict."""
        reward: Literal["exact", "task_specific", "f1"] = "exact"

    config: Config
    name = "textworld"
    rules = "A text game. Do what the quest asks for."
    view_names = ("facts",)

    def __init__(self, config: Config) -> None:
        """Check the ranges; needs the extra `text`."""
        engine()
        for name, (low, high) in (("rooms", config.rooms), ("objects", config.objects)):
            if not 1 <= low <= high:
                raise ConfigError(
                    f"textworld.{name}",
                    f"({low}, {high}) is not a range",
                    "give (least, most) with 1 <= least <= most",
                )
        self.verifier = FactReward.Config(reward=config.reward).build()
        super().__init__(config)

    def make_view(self, name: str) -> View[Any]:
        return FactView()

    def game(self, number: int, rooms: int, objects: int) -> Game:
        """Load or generate a game."""
        return load_game(Size(rooms, objects, self.config.quest), number)

    def draw(self, rng: np.random.Generator) -> GameScene:
        """Draw the start of a game or, for `difference`, a state within one."""
        number = self.config.first + int(rng.integers(self.config.games))
        sizes = np.random.default_rng(number)  # the size of a game depends on its number only
        rooms = int(sizes.integers(self.config.rooms[0], self.config.rooms[1] + 1))
        objects = int(sizes.integers(self.config.objects[0], self.config.objects[1] + 1))
        facts = self.game(number, rooms, objects).facts
        if self.config.answer == "difference":
            for _ in range(int(rng.integers(self.config.wander + 1))):
                changed = [after for after in successors(facts).values() if after != facts]
                facts = changed[int(rng.integers(len(changed)))]
        return GameScene(number, rooms, objects, facts)

    def key(self, state: GameScene) -> Any:
        """The game: all its states are one instance, so that test games are new games."""
        return sorted(self.game(state.number, state.rooms, state.objects).facts)

    def legal(self, state: GameScene | Change) -> tuple[str, ...]:
        """The commands that TextWorld's rules allow.

        For `difference` also some impossible ones, which change nothing.
        """
        if isinstance(state, Change):
            return ("look",)
        possible = successors(state.facts)
        if self.config.answer == "whole":
            return tuple(sorted(possible))
        active = sorted(command for command in possible if not command.startswith(PASSIVE_COMMANDS))
        return (*active, *sorted(_plausible(state) - possible.keys()), "look")

    def outcomes(self, state: GameScene | Change, action: str) -> Sequence[Outcome]:
        """The facts after the command; the game ends when the quest's facts hold."""
        if isinstance(state, Change):
            return [Outcome(state=state, terminated=True)]
        after = successors(state.facts).get(action, state.facts)
        if self.config.answer == "difference":
            change = Change(after - state.facts, state.facts - after)
            return [Outcome(state=change, terminated=True, success=True)]
        won = self.game(state.number, state.rooms, state.objects).wins <= after
        scene = GameScene(state.number, state.rooms, state.objects, after)
        return [Outcome(state=scene, reward=float(won), terminated=won, success=won)]

    def expert(self, state: GameScene | Change, steps_left: int, rng: np.random.Generator) -> str:
        """The next command of the walkthrough; once off its path, breadth-first search."""
        if isinstance(state, Change) or self.config.answer == "difference":
            return self.legal(state)[0]
        game = self.game(state.number, state.rooms, state.objects)
        facts = game.facts
        for command in game.walkthrough:
            if facts == state.facts:
                return command
            facts = successors(facts)[command]
        return _search(state.facts, game.wins)

    @property
    def instruction(self) -> str:
        """Rules and legend, then the form of the answer, or the quest and the actions."""
        scene = self.state
        lines = [self.rules, FactView.legend]
        if self.config.answer == "difference":
            lines.append(FactView.change_legend)
        else:
            wins = self.game(scene.number, scene.rooms, scene.objects).wins
            lines.append(f"Quest: bring about {'; '.join(sorted(wins))}.")
            lines.append(f"Actions: {', '.join(self.actions())}.")
        return "\n".join(lines)

    def vocabulary(self) -> tuple[str, ...]:
        """Relations, commands and things."""
        things = [f"{kind}{number}" for kind, count in KINDS.items() for number in range(count)]
        return (*dict.fromkeys(VOCABULARY), *things, *(f"{thing} " for thing in things))


def _plausible(state: GameScene) -> set[str]:
    """Commands that make sense here but may be impossible.

    They are every direction, and opening and closing the doors and containers of the room.
    """
    room = next(fact.split(" ")[2] for fact in state.facts if fact.startswith("at P "))
    related = [fact.split(" ") for fact in state.facts if room in fact.split(" ")]
    things = {word for words in related for word in words[1:] if word[0] in "dc"}
    directions = {f"go {direction}" for direction in ("north", "east", "south", "west")}
    return directions | {f"{verb} {thing}" for verb in ("open", "close") for thing in things}


def _search(facts: frozenset[str], wins: frozenset[str], max_states: int = 3000) -> str:
    """The first command of a shortest way to the quest's facts.

    Any command when none is found within `max_states`.
    """
    queue = [(facts, "")]
    seen = {facts}
    for here, first in queue:
        for command, after in successors(here).items():
            if after in seen:
                continue
            if wins <= after:
                return first or command
            seen.add(after)
            queue.append((after, first or command))
        if len(seen) > max_states:
            break
    return next(iter(successors(facts)))
