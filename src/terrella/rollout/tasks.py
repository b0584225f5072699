"""Tasks by number: task `i` is a pure function of the config, so a resumed run asks the same.

An agent plays an instance. A world model predicts the result of a step that a policy took.
    AgentTasks(split=Split.TRAIN, seed=0)(7);  PredictionTasks(world_config, policy_config)(7)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from terrella.core.config import Configurable
from terrella.core.episode import EpisodeRun
from terrella.core.protocols import Policy
from terrella.core.seeds import TASK_STREAM, instance_seed, stream
from terrella.core.tokens import Task
from terrella.core.types import Situation, Split, Transition
from terrella.core.world import World
from terrella.policies.basic import Random

Ask = Literal["action", "observation"]
"""What a model is asked for: an agent's action, or a world model's next observation."""


@dataclass(frozen=True)
class AgentTasks:
    """Play instance after instance of a split."""

    split: Split = Split.TRAIN
    seed: int = 0

    def __call__(self, index: int) -> Task:
        return Task(seed=instance_seed(self.seed, index), noise_seed=index * 1000, split=self.split)


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
        """The instance of episode `index`; a reset is enough to know it."""
        seed = instance_seed(self.seed, index)
        self.world.reset(seed=seed, options={"split": self.split, "noise_seed": index})
        return self.world.instance

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
            before, history = run.situation, tuple(run.transitions)
            steps.append((_with_history(before, history), run.advance(self.policy.act(run.moment))))
        return steps


def _with_history(situation: Situation, history: tuple[Transition, ...]) -> Situation:
    """The situation with a frozen history: that of a running episode keeps growing."""
    return Situation(
        instruction=situation.instruction,
        observation=situation.observation,
        actions=situation.actions,
        history=history,
        steps_left=situation.steps_left,
    )


def tasks_for(ask: Ask, world: World.Config, *, split: Split, seed: int) -> Callable[[int], Task]:
    """Tasks of a split by number: play an instance, or predict a step of a random policy."""
    if ask == "action":
        return AgentTasks(split=split, seed=seed)
    return PredictionTasks(world, split=split, seed=seed)
