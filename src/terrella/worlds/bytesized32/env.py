"""ByteSized32 state prediction: predict the effect of one action in recorded states of text games.

An episode is one record of one of 31 games. The state is shown, the recorded action is the only
legal one, and the observation after it is the answer, as a difference or as a whole state. Without
data the records are a small generated sample.
    world = ByteSized32.Config(path=Path("data/bytesized32"), reward="task_specific").build()
    observation, info = world.reset(seed=0, options={"split": "test"})
    world.step(world.actions()[0])
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from terrella.core.config import Local
from terrella.core.errors import ConfigError
from terrella.core.instances import instance_id, split_of
from terrella.core.spaces import Names, Observations
from terrella.core.types import Observation, Split, Transition
from terrella.core.world import Step, World
from terrella.worlds.bytesized32.focus import Focus
from terrella.worlds.bytesized32.prompt import prompt
from terrella.worlds.bytesized32.published_prompt import CASES
from terrella.worlds.bytesized32.records import QueryKind, Record
from terrella.worlds.bytesized32.rewards import GameReward
from terrella.worlds.bytesized32.rules import find_rules
from terrella.worlds.bytesized32.splits import Splits, load_pools
from terrella.worlds.bytesized32.things import action_text
from terrella.worlds.bytesized32.views import VIEWS, view_of


class ByteSized32(World):
    """Predict the next state of recorded text games: four queries, four rewards, three splits."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The data and its split, the query, and how it is shown and rewarded."""

        max_steps: int = 2
        """The recorded action ends the episode; any other leaves a second try."""
        view: str = "compact"
        path: Local[Path | None] = None
        """Folder with the data; None for $TERRELLA_BYTESIZED32, else the generated sample."""
        splits: Splits = "official"
        asked: QueryKind = "full"
        answer: Literal["difference", "whole"] = "difference"
        reward: Literal["exact", "task_specific", "f1", "released"] = "exact"
        focus: Literal["everything", "varying"] = "everything"
        """`varying` leaves out properties that are the same in all states of a game."""
        gold_share: float | None = None
        """Fraction of drawn records in which something changes; None draws uniformly."""
        even_games: bool = True
        """Draw the game first, because one game has two thirds of all records."""
        prompt: Literal["short", "terse", "published"] = "short"
        """What chat models are told: the format, one sentence, or RLVR-World's rules and examples.

        One sentence is enough for a model that is fitted to the format.
        """
        rules_folder: Local[Path | None] = None
        """Folder with the official {action,object,score}_rules.json, for chat prompts.

        None leaves them out of short prompts; published ones look for them beside the games.
        """
        examples: int = 0
        """Number of worked examples in chat prompts, from a game that is used for nothing else."""

    config: Config
    name = "bytesized32"
    rules = (
        "You simulate a text game: given its state and an action, predict the state that follows."
    )
    view_names = tuple(VIEWS)

    def __init__(self, config: Config) -> None:
        """Load the records, so that a missing or broken folder fails here."""
        super().__init__(config)
        if config.gold_share is not None and not 0 <= config.gold_share <= 1:
            raise ConfigError("gold_share", f"must lie in [0, 1], not {config.gold_share}")
        if config.prompt == "published":
            _check_published(config)
        self.pools = load_pools(config.path, config.splits)
        self.focus = load_focus(config.path, config.splits, config.focus == "everything")
        self.view = view_of(config.view)
        self.verifier = GameReward.Config(reward=config.reward).build()
        self.record = self.pools[Split.TRAIN][0]
        self._answered = False
        self.observation_space = Observations(self._observe().kind, self._observe())
        self.action_space = Names(self.actions())

    # --- a record as an episode -------------------------------------------------------------------

    def _start(self, rng: np.random.Generator) -> Any:
        self.begin(self._draw_record(rng))
        return self._instance_key(self.record, self.split)

    def begin(self, record: Record) -> Observation:
        """Start an episode with this record; `reset` does it with the record that it draws."""
        self.record = record
        self._answered = False
        self.action_space = Names(self.actions())
        return self._observe()

    def _draw_record(self, rng: np.random.Generator) -> Record:
        share = self.config.gold_share
        changed = None if share is None else rng.random() < share
        pool = load_pool(self.config.path, self.config.splits, self.split, changed)
        if not self.config.even_games:
            return pool.records[int(rng.integers(len(pool.records)))]
        game = pool.games[int(rng.integers(len(pool.games)))]
        return game[int(rng.integers(len(game)))]

    @staticmethod
    def _instance_key(record: Record, split: Split) -> Any:
        """A key whose instance id falls into the record's split.

        The data fix the split, but `split_of` derives it from the instance id. So the key gets the
        first salt that makes them agree.
        """
        query = instance_id(list(record.key))
        salt = 0
        while split_of(instance_id([query, salt])) is not split:
            salt += 1
        return [query, salt]

    def _observe(self) -> Observation:
        before, after = self.focus.before_and_after(self.record, self.config.asked)
        game = self.record.game
        if not self._answered:
            return self.view.state(game, before)
        return self.view.answer(game, before, after, whole=self.config.answer == "whole")

    def _act(self, action: str) -> Step:
        if action not in self.actions():
            return Step(0.0, False, False, valid=False, effective=False)
        self._answered = True
        reward = float(self.record.score["score"]) - float(self.record.state.score["score"])
        return Step(reward, True, True, valid=True, effective=self.record.changed)

    def actions(self) -> tuple[str, ...]:
        """The recorded action, written in the style of the view."""
        if self.config.view == "json":
            return (self.record.action,)
        return (action_text(self.record.action, self.record.state.things),)

    def expert(self, state: Any, steps_left: int, rng: np.random.Generator) -> str:
        """The recorded action, the only one."""
        return self.actions()[0]

    def transition(self, record: Record) -> Transition:
        """The record as a transition, without drawing a record."""
        before = self.begin(record)
        action = self.actions()[0]
        step = self._act(action)
        return Transition(
            observation=before,
            action=action,
            next_observation=self._observe(),
            reward=step.reward,
            terminated=True,
            info={"valid": True, "effective": step.effective, "success": True},
        )

    # --- prompt and vocabulary --------------------------------------------------------------------

    @property
    def instruction(self) -> str:
        """The role, the formats of states and answers, and rules and examples if configured."""
        return prompt(self)

    def vocabulary(self) -> tuple[str, ...]:
        """Fragments of states, actions and train answers."""
        everything = self.config.focus == "everything"
        return load_vocabulary(self.config.path, self.config.splits, everything)


def _check_published(config: ByteSized32.Config) -> None:
    """The published prompt is about one query in one format, and needs the rules of the games."""
    fixed = {"view": "json", "asked": "full", "answer": "difference"}
    for name, value in fixed.items():
        if getattr(config, name) != value:
            raise ConfigError(
                name,
                f"{getattr(config, name)} does not fit prompt=published",
                f"set {name}={value}, or prompt=short",
            )
    if config.examples > len(CASES):
        raise ConfigError("examples", f"{config.examples} is too many", f"at most {len(CASES)}")
    find_rules(config.rules_folder, config.path)


@dataclass(frozen=True)
class RecordPool:
    """Records to draw from, as one list and by game."""

    records: Sequence[Record]
    games: Sequence[Sequence[Record]]


@functools.lru_cache(maxsize=16)
def load_pool(path: Path | None, splits: Splits, split: Split, changed: bool | None) -> RecordPool:
    """The records of a split; `changed` selects those with changes (True) or without (False)."""
    records = load_pools(path, splits)[split]
    if changed is not None:
        records = tuple(record for record in records if record.changed == changed)
    if not records:
        kind = "" if changed is None else " with changes" if changed else " without changes"
        raise ConfigError("gold_share", f"there are no {split} records{kind}")
    games: dict[str, list[Record]] = {}
    for record in records:
        games.setdefault(record.game, []).append(record)
    return RecordPool(records, list(games.values()))


@functools.lru_cache(maxsize=4)
def load_focus(path: Path | None, splits: Splits, everything: bool) -> Focus:
    """The focus of these records; cached, because it is expensive to compute."""
    return Focus(load_pools(path, splits), everything=everything)


@functools.lru_cache(maxsize=4)
def load_vocabulary(path: Path | None, splits: Splits, everything: bool) -> tuple[str, ...]:
    """The vocabulary of these records; cached like the focus."""
    return load_focus(path, splits, everything).vocabulary()
