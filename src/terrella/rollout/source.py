"""Where the episodes of a run come from, as a config: any process on any node can rebuild it.

An engine gets no live objects from a pipeline. It gets the configs of the rollout, the tasks and
the codec, and makes them in its own processes. So the same pipeline trains in one process or on a
cluster, and a killed run asks the same tasks again.
    source = EpisodeSource(rollout=Rollout.Config(world=world), tasks=WorldTasks(world=world))
    rollout, task = source.make_rollout(tokenizer), source.tasks.make()(7)
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from terrella.codecs.choose import CodecConfig
from terrella.core.config import Configurable
from terrella.core.tokens import Task
from terrella.core.types import Split
from terrella.core.world import World
from terrella.rollout.reward_shaping import RewardShaping
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import Ask, tasks_for

Tasks = Callable[[int], Task]
"""Task `i` of a split, as a pure function of `i`."""


@dataclass(frozen=True, kw_only=True)
class TaskSource(Configurable.Config, abc.ABC):
    """Tasks by number. `make` is the hook: it reads what it needs from the config alone."""

    split: Split = Split.TRAIN
    seed: int = 0

    @abc.abstractmethod
    def make(self) -> Tasks: ...


@dataclass(frozen=True, kw_only=True)
class WorldTasks(TaskSource):
    """Play an instance of the world, or predict a step of a random policy in it."""

    world: World.Config
    ask: Ask = "action"
    train_instances: int = 0
    """Distinct instances to train on, each equally often; 0 draws them as the world does."""

    def make(self) -> Tasks:
        instances = self.train_instances if self.split is Split.TRAIN else 0
        return tasks_for(
            self.ask, self.world, split=self.split, seed=self.seed, instances=instances
        )


@dataclass(frozen=True, kw_only=True)
class EpisodeSource(Configurable.Config):
    """The configs of everything that plays and verifies an episode."""

    rollout: Rollout.Config
    tasks: TaskSource
    codec: CodecConfig = field(default_factory=CodecConfig)
    shaping: RewardShaping.Config | None = None
    verifier: Configurable.Config | None = None
    """None is the world's own. With one, predictions of recorded steps need no world."""

    def make_rollout(self, tokenizer: Any) -> Rollout:
        shaping = self.shaping.build() if self.shaping else None
        verifier = self.verifier.build() if self.verifier else None
        return Rollout(self.rollout, self.codec.make(tokenizer), verifier=verifier, shaping=shaping)

    def on(self, split: Split) -> Self:
        """The same source with the tasks of another split."""
        return self.replace(tasks=self.tasks.replace(split=split))
