"""Sokoban: the classic pushing puzzle in small rooms that are new at each reset and can always be solved in time.

`draw` (reverse play, `generator.py`) and `expert` (shortest solutions, `solver.py`) are the hooks that matter.
    world = Sokoban.presets["two_box"].build()
    observation, info = world.reset(seed=0)
    world.step("Up")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.protocols import View
from terrella.core.types import Outcome
from terrella.core.world import StateWorld
from terrella.verify.text import LineGain
from terrella.worlds.sokoban.generator import draw_room
from terrella.worlds.sokoban.room import Room, boxes_on_target, moved, steps
from terrella.worlds.sokoban.solver import Guide
from terrella.worlds.sokoban.views import MEANINGS, ROOM_VIEWS

STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0


class Sokoban(StateWorld[Room]):
    """Push every box onto a target."""

    @dataclass(frozen=True, kw_only=True)
    class Config(StateWorld.Config):
        """Room, boxes, and the words and symbols of the day."""

        view: str = "grid"
        size: int = 6
        """Rows and columns, border included."""
        boxes: int = 1
        longest: int = 10
        """Most steps of the reverse play that makes a room. No solution needs more; `max_steps` bounds it too."""
        symbols: str = "#_O√XPS"
        """Wall, floor, target, box on target, box, player, player on target."""
        action_words: tuple[str, str, str, str] = ("Up", "Down", "Left", "Right")
        """What going up, down, left and right is called. The instruction gives the words, not what they do."""

        def __post_init__(self) -> None:
            """Refuse rooms that hold no puzzle, and symbols or words that cannot be told apart."""
            super().__post_init__()
            if self.size < 5:
                raise ConfigError("sokoban.size", f"must be at least 5, not {self.size}", "a push needs three cells")
            most = (self.size - 2) ** 2 // 5
            if not 1 <= self.boxes <= most:
                raise ConfigError("sokoban.boxes", f"must lie in 1..{most} for size {self.size}, not {self.boxes}")
            least = 3 * self.boxes - 2  # a push for each box, and after the first a way to get to the next
            if min(self.longest, self.max_steps) < least:
                what = f"longest and max_steps must be at least {least} for {self.boxes} boxes"
                raise ConfigError("sokoban.longest", what, "raise them, or lower boxes")
            self._check_names()

        def _check_names(self) -> None:
            clear = self.symbols.isprintable() and " " not in self.symbols
            if not clear or not len(set(self.symbols)) == len(self.symbols) == len(MEANINGS):
                wanted = f"{len(MEANINGS)} different visible characters ({', '.join(MEANINGS)})"
                raise ConfigError("sokoban.symbols", f"expected {wanted}, got {self.symbols!r}")
            if len(set(self.action_words)) != 4 or not all(word.strip() for word in self.action_words):
                raise ConfigError("sokoban.action_words", f"expected 4 different words, got {self.action_words}")

    config: Config
    rules = (
        "Push every box onto a target. Each action moves you by one cell; walking into a box pushes it when the "
        "cell behind it is free. You cannot pull a box, push two at once, or pass a wall. "
        "Each step costs 0.1; a box pushed onto a target earns 1, off it costs 1, and the last one on earns 10 more."
    )
    invalid_reward = STEP_REWARD
    verifier = LineGain.Config().build()
    view_names = tuple(ROOM_VIEWS)
    presets: ClassVar[Mapping[str, Configurable.Config]] = {
        "simple": Config(),
        "two_box": Config(boxes=2, longest=20, max_steps=20),
        "larger": Config(size=8, boxes=2, longest=20, max_steps=20),
        "harder": Config(size=10, boxes=2, longest=20, max_steps=20),
        "grid_vocab": Config(symbols="W.GCBA@"),
        "action_vocab": Config(action_words=("Left", "Right", "Up", "Down")),
    }

    def __init__(self, config: Config) -> None:
        """Tie the action words to directions."""
        super().__init__(config)
        self.step_of = dict(zip(config.action_words, steps(config.size), strict=True))
        self.word_of = {step: word for word, step in self.step_of.items()}
        self.guide = Guide()

    def draw(self, rng: np.random.Generator) -> Room:
        """A room by reverse play: every box off target, and solvable within the episode."""
        config = self.config
        return draw_room(rng, size=config.size, boxes=config.boxes, longest=min(config.longest, config.max_steps))

    def legal(self, state: Room) -> tuple[str, ...]:
        """All four directions, always: to walk into a wall is allowed, and a waste of a step."""
        return self.config.action_words

    def outcomes(self, state: Room, action: str) -> list[Outcome]:
        """One step. The last box on its target ends the episode, and nothing moves after that."""
        before, wanted = boxes_on_target(state), len(state.boxes)
        if before == wanted:
            return [Outcome(state=state, terminated=True, success=True)]
        after = moved(state, self.step_of[action])
        placed = before if after.boxes is state.boxes else boxes_on_target(after)
        solved = placed == wanted
        reward = STEP_REWARD + BOX_REWARD * (placed - before) + SOLVED_REWARD * solved
        return [Outcome(state=after, reward=reward, terminated=solved, success=solved)]

    def make_view(self, name: str) -> View[Room]:
        """The view of that name, in this config's symbols."""
        return ROOM_VIEWS[name](size=self.config.size, boxes=self.config.boxes, symbols=self.config.symbols)

    def expert(self, state: Room, steps_left: int, rng: np.random.Generator) -> str:
        """The first step of a shortest solution; any action when the room can no longer be solved."""
        step = self.guide.next_step(state)
        return self.config.action_words[0] if step is None else self.word_of[step]
