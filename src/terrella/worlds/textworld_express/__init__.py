"""TextWorldExpress: eight fast text games with train, dev and test folds and gold paths, as an agent's world.

Needs the extra `text` and Java 17. A world holds a Java process of its own; the text is what a player sees.
    world = TextWorldExpress.Config(game="coin", params="numLocations=3,includeDoors=0").build()
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from terrella.core.errors import MissingExtraError, WorldError
from terrella.core.instances import instance_id, split_of
from terrella.core.spaces import Names, Observations
from terrella.core.types import Observation, Split, Text
from terrella.core.world import Step, World
from terrella.verify.text import LineGain

FOLDS = {Split.TRAIN: "train", Split.VALIDATION: "dev", Split.TEST: "test"}
GAMES = ("coin", "cookingworld", "twc", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder")


class TextWorldExpress(World):
    """Fast text games for agents: find the coin, cook, tidy up, read a map, sort."""

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        """Which game, and how large."""

        max_steps: int = 30
        view: str = "text"
        game: Literal[
            "coin", "cookingworld", "twc", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder"
        ] = "coin"
        params: str = "numLocations=3,includeDoors=0"
        """The game's own parameters, as `name=value,...`."""
        seeds: int = 200
        """Instances per fold."""

    config: Config
    name = "textworld_express"
    rules = "A text game. Type one of the actions."
    view_names = ("text",)
    verifier = LineGain.Config().build()

    def __init__(self, config: Config) -> None:
        """Start the game's Java process; it ends with this object."""
        super().__init__(config)
        self._env = start(config)
        self._told: dict[str, Any] = {"observation": "", "validActions": ["look around"]}
        self._gold: list[str] = []
        self._taken: list[str] = []
        self._task = ""
        self._load(Split.TRAIN, 0)
        self.observation_space = Observations(self._observe().kind, self._observe())
        self.action_space = Names(self.actions())

    def _load(self, split: Split, place: int) -> int:
        seeds = {Split.TRAIN: self._env.getValidSeedsTrain, Split.VALIDATION: self._env.getValidSeedsDev,
                 Split.TEST: self._env.getValidSeedsTest}[split]()  # fmt: skip
        seed = int(seeds[place % min(len(seeds), self.config.seeds)])
        _, self._told = self._env.reset(seed=seed, gameFold=FOLDS[split], generateGoldPath=True)
        self._gold, self._taken = list(self._env.getGoldActionSequence()), []
        self._task = str(self._told["taskDescription"]).strip()
        self.action_space = Names(self.actions())
        return seed

    def _start(self, rng: np.random.Generator) -> Any:
        """A seed of the split's own fold, under a name that falls into that split."""
        seed = self._load(self.split, int(rng.integers(self.config.seeds)))
        told = [self.config.game, self.config.params, FOLDS[self.split], seed]
        return next([*told, salt] for salt in itertools.count() if split_of(instance_id([*told, salt])) is self.split)

    def _observe(self) -> Observation:
        return Text(f"{self._told['observation'].strip()}\n{str(self._told.get('inventory', '')).strip()}".strip())

    def _act(self, action: str) -> Step:
        if action not in self.actions():
            return Step(0.0, False, False, valid=False, effective=False)
        before = self._observe()
        self._taken.append(action)
        _, reward, done, self._told = self._env.step(action)
        won = bool(self._told["tasksuccess"])
        over = won or bool(self._told["taskfailure"])
        return Step(float(reward), over, won, True, self._observe() != before, truncated=bool(done) and not over)

    def actions(self) -> tuple[str, ...]:
        """What the game takes now."""
        return tuple(sorted(self._told["validActions"]))

    @property
    def instruction(self) -> str:
        """The rules, the task of this instance, and the actions."""
        return f"{self.rules}\n{self._task}\nActions: {', '.join(self.actions())}."

    def expert(self, state: Any, steps_left: int, rng: np.random.Generator) -> str:
        """The gold path while it is followed; off it, any action: the game gives no other advice."""
        left = self._gold[len(self._taken) :]
        if left and self._gold[: len(self._taken)] == self._taken and left[0] in self.actions():
            return left[0]
        return self.actions()[int(rng.integers(len(self.actions())))]

    def fork(self) -> Self:
        """A process of its own, brought to the same moment by the same actions."""
        self._require_reset()
        twin = type(self)(self.config)
        twin.reset(seed=self.seed, options={"split": self.split, "noise_seed": self.noise_seed})
        for action in self._taken:
            twin.step(action)
        return twin

    def close(self) -> None:
        """End the Java process."""
        with contextlib.suppress(Exception):  # it may have ended on its own
            self._env.close()

    def __del__(self) -> None:
        if hasattr(self, "_env"):
            self.close()


def start(config: TextWorldExpress.Config) -> Any:
    """TextWorldExpress with this game loaded, or what is missing for it."""
    try:
        from textworld_express import TextWorldExpressEnv
    except ImportError as error:
        raise MissingExtraError("text", "TextWorldExpress") from error
    if shutil.which("java") is None:
        raise WorldError("textworld_express", "there is no `java`", "install Java 17, such as openjdk-17-jre-headless")
    env = TextWorldExpressEnv(envStepLimit=config.max_steps + 1)
    env.load(gameName=config.game, gameParams=config.params)
    return env
