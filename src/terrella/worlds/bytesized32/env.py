"""ByteSized32 state prediction: recorded states of 31 text games, one action each; what comes next?

An episode is one row: the state is shown, its recorded action is the only legal one, and what is seen after it is the
answer, as a difference or as a whole state. Without data the rows are a made sample.
    world = ByteSized32.Config(path=Path("data/bytesized32"), reward="task_specific").build()
    observation, info = world.reset(seed=0, options={"split": "test"})
    world.step(world.actions()[0])
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from terrella.core.errors import ConfigError
from terrella.core.instances import instance_id, split_of
from terrella.core.spaces import Names, Observations
from terrella.core.types import Observation, Split, Transition
from terrella.core.world import Step, World
from terrella.worlds.bytesized32.focus import Focus
from terrella.worlds.bytesized32.prompt import prompt
from terrella.worlds.bytesized32.records import Asked, Record
from terrella.worlds.bytesized32.rewards import GameReward
from terrella.worlds.bytesized32.splits import Splits, load_pools
from terrella.worlds.bytesized32.things import action_text
from terrella.worlds.bytesized32.views import VIEWS, view_of


class ByteSized32(World):
    """Predict the next state of recorded text games: four questions, four rewards, three splits."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """Which rows, which question, how it is shown and paid."""

        max_steps: int = 2
        """The recorded action ends the episode; another one changes nothing and leaves a second try."""
        view: str = "compact"
        path: Path | None = None
        """Folder with the data; None for $TERRELLA_BYTESIZED32, else the made sample."""
        splits: Splits = "official"
        asked: Asked = "full"
        answer: Literal["difference", "whole"] = "difference"
        reward: Literal["exact", "task_specific", "f1", "released"] = "exact"
        focus: Literal["everything", "varying"] = "everything"
        """varying leaves out what is the same in all states of a game."""
        gold_share: float | None = None
        """Share of drawn rows in which something changes; None draws rows as they are."""
        even_games: bool = True
        """Draw the game first: one game has two thirds of all rows."""
        rules_folder: Path | None = None
        """Folder with the official action_rules.json, object_rules.json and score_rules.json, for chat prompts."""
        examples: int = 0
        """Worked examples in chat prompts, from a game that is never asked."""

    config: Config
    name = "bytesized32"
    rules = "You simulate a text game: given its state and an action, predict the state that follows."
    view_names = tuple(VIEWS)

    def __init__(self, config: Config) -> None:
        """Load the rows; a missing or broken folder fails here."""
        super().__init__(config)
        if config.gold_share is not None and not 0 <= config.gold_share <= 1:
            raise ConfigError("gold_share", f"must be a share, not {config.gold_share}")
        self.pools = load_pools(config.path, config.splits)
        self.focus = load_focus(config.path, config.splits, config.focus == "everything")
        self.view = view_of(config.view)
        self.verifier = GameReward.Config(reward=config.reward).build()
        self.record = self.pools[Split.TRAIN][0]
        self._answered = False
        self.observation_space = Observations(self._observe().kind, self._observe())
        self.action_space = Names(self.actions())

    # --- a row as an episode ------------------------------------------------------------------------------------------

    def _start(self, rng: np.random.Generator) -> Any:
        self.begin(self._drawn(rng))
        return self._salted(self.record, self.split)

    def begin(self, record: Record) -> Observation:
        """Ask about this row; what `reset` does with the row it draws."""
        self.record, self._answered = record, False
        self.action_space = Names(self.actions())
        return self._observe()

    def _drawn(self, rng: np.random.Generator) -> Record:
        rows = self._rows(self.split, None if self.config.gold_share is None else rng.random() < self.config.gold_share)
        if not self.config.even_games:
            return rows.all[int(rng.integers(len(rows.all)))]
        game = rows.games[int(rng.integers(len(rows.games)))]
        return game[int(rng.integers(len(game)))]

    def _rows(self, split: Split, changed: bool | None) -> Rows:
        return rows_of(self.config.path, self.config.splits, split, changed)

    @staticmethod
    def _salted(record: Record, split: Split) -> Any:
        """A key whose name falls into the row's split: the split is given, and an instance's name tells it."""
        question = instance_id(list(record.key))
        return next([question, salt] for salt in itertools.count() if split_of(instance_id([question, salt])) is split)

    def _observe(self) -> Observation:
        before, after = self.focus.question(self.record, self.config.asked)
        if not self._answered:
            return self.view.state(self.record.game, before)
        return self.view.answer(self.record.game, before, after, whole=self.config.answer == "whole")

    def _act(self, action: str) -> Step:
        if action not in self.actions():
            return Step(0.0, False, False, valid=False, effective=False)
        self._answered = True
        gained = float(self.record.score["score"]) - float(self.record.state.score["score"])
        return Step(gained, True, True, valid=True, effective=self.record.changed)

    def actions(self) -> tuple[str, ...]:
        """The action that was recorded, spelled as the view does."""
        if self.config.view == "json":
            return (self.record.action,)
        return (action_text(self.record.action, self.record.state.things),)

    def expert(self, state: Any, steps_left: int, rng: np.random.Generator) -> str:
        """The recorded action: there is no other."""
        return self.actions()[0]

    def transition(self, record: Record) -> Transition:
        """A row as a transition, without drawing."""
        before, action = self.begin(record), self.actions()[0]
        step = self._act(action)
        return Transition(
            observation=before, action=action, next_observation=self._observe(), reward=step.reward, terminated=True,
            info={"valid": True, "effective": step.effective, "success": True},
        )  # fmt: skip

    # --- what a model is told -----------------------------------------------------------------------------------------

    @property
    def instruction(self) -> str:
        """The role, how states and answers are written, then rules and examples if asked for."""
        return prompt(self)

    def words(self) -> tuple[str, ...]:
        """Fragments that states, actions and train answers are made of."""
        return load_words(self.config.path, self.config.splits, self.config.focus == "everything")


@dataclass(frozen=True)
class Rows:
    """Rows to draw from, all and by game."""

    all: Sequence[Record]
    games: Sequence[Sequence[Record]]


@functools.lru_cache(maxsize=16)
def rows_of(path: Path | None, splits: Splits, split: Split, changed: bool | None) -> Rows:
    """The rows of a split; with `changed`, only those in which something changes, or nothing does."""
    rows = [row for row in load_pools(path, splits)[split] if changed is None or row.changed == changed]
    if not rows:
        raise ConfigError("gold_share", f"the {split} rows have none of this kind")
    games: dict[str, list[Record]] = {}
    for row in rows:
        games.setdefault(row.game, []).append(row)
    return Rows(rows, list(games.values()))


@functools.lru_cache(maxsize=4)
def load_focus(path: Path | None, splits: Splits, everything: bool) -> Focus:
    """One per data and split: what it finds out is kept."""
    return Focus(load_pools(path, splits), everything=everything)


@functools.lru_cache(maxsize=4)
def load_words(path: Path | None, splits: Splits, everything: bool) -> tuple[str, ...]:
    """The words of a vocabulary made for these rows."""
    return load_focus(path, splits, everything).words()
