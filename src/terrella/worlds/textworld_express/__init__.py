"""TextWorldExpress: eight fast text games with train, dev and test folds and gold paths.

It needs the extra `text` and Java 17. Each world has its own Java process. The observation is the
text that a player sees.
    world = TextWorldExpress.Config(game="coin", params="numLocations=3,includeDoors=0").build()
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from terrella.core.config import Recorded
from terrella.core.errors import MissingExtraError, WorldError
from terrella.core.instances import instance_id, split_of
from terrella.core.spaces import Names, Observations
from terrella.core.types import Observation, Split, Text
from terrella.core.world import Step, World
from terrella.verify.text import LineGain

FOLDS = {Split.TRAIN: "train", Split.VALIDATION: "dev", Split.TEST: "test"}


class TextWorldExpress(World):
    """Fast text games for agents: find the coin, cook, tidy up, read a map, sort."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """The game, its parameters and the number of instances."""

        max_steps: int = 30
        view: str = "text"
        game: Literal[
            "coin",
            "cookingworld",
            "twc",
            "mapreader",
            "arithmetic",
            "sorting",
            "simonsays",
            "peckingorder",
        ] = "coin"
        params: Recorded[str] = "numLocations=3,includeDoors=0"
        """The game's own parameters, as `name=value,...`."""
        seeds: int = 200
        """Instances per fold."""

    config: Config
    name = "textworld_express"
    reaches = "Java"
    rules = "A text game. Type one of the actions."
    view_names = ("text",)
    verifier = LineGain.Config().build()

    def __init__(self, config: Config) -> None:
        """Start the Java process of the game; it ends with this object."""
        super().__init__(config)
        self._env = start(config)
        self._info: dict[str, Any] = {"observation": "", "validActions": ["look around"]}
        self._gold: list[str] = []
        self._history: list[str] = []
        self._task = ""
        self._load(Split.TRAIN, 0)
        self.observation_space = Observations(self._observe().kind, self._observe())
        self.action_space = Names(self.actions())

    def _load(self, split: Split, index: int) -> int:
        """Start an instance of a fold; returns its seed."""
        seeds = {
            Split.TRAIN: self._env.getValidSeedsTrain,
            Split.VALIDATION: self._env.getValidSeedsDev,
            Split.TEST: self._env.getValidSeedsTest,
        }[split]()
        seed = int(seeds[index % min(len(seeds), self.config.seeds)])
        _, self._info = self._env.reset(seed=seed, gameFold=FOLDS[split], generateGoldPath=True)
        self._gold = list(self._env.getGoldActionSequence())
        self._history = []
        self._task = str(self._info["taskDescription"]).strip()
        self.action_space = Names(self.actions())
        return seed

    def _start(self, rng: np.random.Generator) -> Any:
        """Draw a seed from the split's own fold.

        A salt is added to its key until the key hashes into that split.
        """
        seed = self._load(self.split, int(rng.integers(self.config.seeds)))
        key = [self.config.game, self.config.params, FOLDS[self.split], seed]
        for salt in itertools.count():
            if split_of(instance_id([*key, salt])) is self.split:
                break
        return [*key, salt]

    def _observe(self) -> Observation:
        scene = self._info["observation"].strip()
        inventory = str(self._info.get("inventory", "")).strip()
        return Text(f"{scene}\n{inventory}".strip())

    def _act(self, action: str) -> Step:
        if action not in self.actions():
            return Step(0.0, False, False, valid=False, effective=False)
        before = self._observe()
        self._history.append(action)
        _, reward, done, self._info = self._env.step(action)
        won = bool(self._info["tasksuccess"])
        over = won or bool(self._info["taskfailure"])
        return Step(
            float(reward),
            over,
            won,
            True,
            self._observe() != before,
            truncated=bool(done) and not over,
        )

    def actions(self) -> tuple[str, ...]:
        """The actions that the game accepts now."""
        return tuple(sorted(self._info["validActions"]))

    @property
    def instruction(self) -> str:
        """The rules, the task of this instance, and the actions."""
        return f"{self.rules}\n{self._task}\nActions: {', '.join(self.actions())}."

    def expert(self, state: Any, steps_left: int, rng: np.random.Generator) -> str:
        """The next action of the gold path; a random action once the episode has left it.

        The game offers no other guidance.
        """
        left = self._gold[len(self._history) :]
        if left and self._gold[: len(self._history)] == self._history and left[0] in self.actions():
            return left[0]
        return self.actions()[int(rng.integers(len(self.actions())))]

    def fork(self) -> Self:
        """Start another process and replay the same actions in it."""
        self._require_reset()
        twin = type(self)(self.config)
        twin.reset(seed=self.seed, options={"split": self.split, "noise_seed": self.noise_seed})
        for action in self._history:
            twin.step(action)
        twin.steps, twin._over = self.steps, self._over  # invalid actions are steps, too
        return twin

    @property
    def steps_to_fork(self) -> int:
        return len(self._history)

    def close(self) -> None:
        """Stop the Java process."""
        with contextlib.suppress(Exception):  # it may already have ended
            self._env.close()

    def __del__(self) -> None:
        if hasattr(self, "_env"):
            self.close()


def start(config: TextWorldExpress.Config) -> Any:
    """Start TextWorldExpress with this game; the error says what is not installed."""
    try:
        from textworld_express import TextWorldExpressEnv
    except ImportError as error:
        raise MissingExtraError("text", "TextWorldExpress") from error
    if shutil.which("java") is None:
        raise WorldError(
            "textworld_express",
            "the program `java` is not installed",
            "install Java 17, for example openjdk-17-jre-headless",
        )
    env = TextWorldExpressEnv(envStepLimit=config.max_steps + 1)
    env.load(gameName=config.game, gameParams=config.params)
    return env
