"""Tasks by number: task `i` is a pure function of the config, so a resumed run asks the same.

An agent plays an instance. A world model predicts the result of a step that a policy took.
    AgentTasks(split=Split.TRAIN, seed=0)(7);  PredictionTasks(world_config, policy_config)(7)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from terrella.core.config import Configurable
from terrella.core.episode import EpisodeRun
from terrella.core.protocols import Policy
from terrella.core.seeds import NOISE_STRIDE, TASK_STREAM, instance_seed, stream
from terrella.core.tokens import Task
from terrella.core.types import Situation, Split, Transition
from terrella.core.world import World
from terrella.policies.basic import Random

logger = logging.getLogger("terrella")

TRIES = 100
"""Seeds that are tried for each distinct instance that is wanted."""
Ask = Literal["action", "observation"]
"""What a model is asked for: an agent's action, or a world model's next observation."""


@dataclass(frozen=True)
class AgentTasks:
    """Play instance after instance of a split."""

    split: Split = Split.TRAIN
    seed: int = 0

    def __call__(self, index: int) -> Task:
        return Task(
            seed=instance_seed(self.seed, index), noise_seed=index * NOISE_STRIDE, split=self.split
        )


class EvenTasks:
    """Play each of some distinct instances equally often, in a new order each round.

    A small world draws a few instances most of the time, and validation counts each of them once.
    """

    def __init__(
        self, world: World.Config, instances: int, *, split: Split = Split.TRAIN, seed: int = 0
    ) -> None:
        """`instances` is how many are wanted; a small world may have fewer."""
        first = instance_seed(seed, 0)
        self.seeds = even_seeds(world.build(), first, instances, split)
        self.split = split
        self.seed = seed

    def __call__(self, index: int) -> Task:
        again, place = divmod(index, len(self.seeds))
        order = stream(TASK_STREAM, self.seed, again).permutation(len(self.seeds))
        return Task(
            seed=self.seeds[int(order[place])], noise_seed=index * NOISE_STRIDE, split=self.split
        )


class PredictionTasks:
    """Predict the result of a step: one step, drawn uniformly, of each episode of a policy."""

    def __init__(
        self,
        world: World.Config,
        policy: Configurable.Config | None = None,
        *,
        split: Split = Split.TRAIN,
        seed: int = 0,
    ) -> None:
        """The policy is uniform random unless given."""
        self.world: World = world.build()
        self.policy: Policy = (policy or Random.Config()).build()
        self.split = split
        self.seed = seed

    def __call__(self, index: int) -> Task:
        return self.draw(self.episode(index))

    @staticmethod
    def draw(episode: Sequence[Task]) -> Task:
        """One step of an episode."""
        return episode[int(stream(TASK_STREAM, episode[0].seed).integers(len(episode)))]

    def instance(self, index: int) -> str:
        """The instance of episode `index`; at most a reset is needed to know it."""
        return self.world.instance_of(instance_seed(self.seed, index), self.split)

    def episode(self, index: int) -> list[Task]:
        """Every step of episode `index`, as a task."""
        seed = instance_seed(self.seed, index)
        steps = self._steps(seed, noise_seed=index)
        return [
            Task(
                seed=seed,
                noise_seed=index,
                split=self.split,
                situation=situation,
                transition=step,
                instance=self.world.instance,
            )
            for situation, step in steps
        ]

    def _steps(self, seed: int, noise_seed: int) -> list[tuple[Situation, Transition]]:
        run = EpisodeRun(
            self.world, seed=seed, noise_seed=noise_seed, split=self.split, policy=self.policy.name
        )
        steps: list[tuple[Situation, Transition]] = []
        while not run.over:
            # A frozen history: that of a running episode keeps growing.
            before = replace(run.situation, history=tuple(run.transitions))
            steps.append((before, run.advance(self.policy.act(run.moment))))
        return steps


def named_instances(
    world: World, seeds: Iterable[int], split: Split, most: int | None = None
) -> dict[str, int]:
    """The first seed of each instance, by the name of what its episode begins with.

    `most` ends the search, as a reset may be slow. So does the last instance that there is, where
    the world can list them.
    """
    listed = world.instances(split)
    if listed:
        most = len(listed) if most is None else min(most, len(listed))
    first: dict[str, int] = {}
    for seed in seeds:
        if len(first) == most:
            break
        first.setdefault(world.start_of(seed, split), seed)
    return first


def start_or_name(world: World, seed: int, split: Split) -> str:
    """What the episode of a seed begins with; a name of its own where it cannot begin."""
    try:
        return world.start_of(seed, split)
    except Exception as error:  # noqa: BLE001  its attempt will be masked
        warn_of_reset(world, error)
        return f"seed {seed}"


def warn_of_reset(world: World, error: Exception) -> None:
    """Log why an attempt is masked."""
    kind = type(error).__name__
    logger.warning("the world %s cannot be reset: %s: %s", world.name, kind, error)


def distinct_instances(
    world: World, seeds: Iterable[int], split: Split, most: int | None = None
) -> list[int]:
    """The first seed of each instance."""
    return list(named_instances(world, seeds, split, most).values())


def even_seeds(world: World, first: int, instances: int, split: Split) -> list[int]:
    """Seeds of so many distinct instances from `first` on, or of all that were found."""
    return distinct_instances(world, range(first, first + TRIES * instances), split, instances)


def tasks_for(
    ask: Ask, world: World.Config, *, split: Split, seed: int, instances: int = 0
) -> Callable[[int], Task]:
    """Tasks of a split by number: play an instance, or predict a step of a random policy.

    With `instances`, so many distinct ones are played equally often.
    """
    if ask == "action" and instances:
        return EvenTasks(world, instances, split=split, seed=seed)
    if ask == "action":
        return AgentTasks(split=split, seed=seed)
    return PredictionTasks(world, split=split, seed=seed)
