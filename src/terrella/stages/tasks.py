"""Questions for a model, by number: the i-th is a pure function of the config, so that a resumed run asks the same.

An agent is asked to play an instance; a world model is asked what came after a step that a policy took.
    AgentTasks(split=Split.TRAIN, seed=0)(7);  PredictionTasks(world_config, policy_config)(7)
"""

from __future__ import annotations

from dataclasses import dataclass

from terrella.core.config import Configurable
from terrella.core.episode import EpisodeRun
from terrella.core.instances import TASK_STREAM, stream
from terrella.core.protocols import Policy, Task
from terrella.core.types import Situation, Split, Transition
from terrella.core.world import World
from terrella.policies.basic import Random

SEED_STRIDE = 2**32
"""Runs with different seeds never meet the same question by number."""


@dataclass(frozen=True)
class AgentTasks:
    """Play instance after instance of a split."""

    split: Split = Split.TRAIN
    seed: int = 0

    def __call__(self, index: int) -> Task:
        """The instance of this number, with noise of its own."""
        return Task(seed=self.seed * SEED_STRIDE + index, noise_seed=index * 1000, split=self.split)


class PredictionTasks:
    """What comes after this step? Steps are those a policy takes, one chosen from each episode, evenly."""

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
        self.split, self.seed = split, seed

    def __call__(self, index: int) -> Task:
        """One step of the episode of this number."""
        asked = self.episode(index)
        return asked[int(stream(TASK_STREAM, asked[0].seed).integers(len(asked)))]

    def episode(self, index: int) -> list[Task]:
        """Every step of the episode of this number, as a question."""
        seed = self.seed * SEED_STRIDE + index
        return [
            Task(seed=seed, noise_seed=index, split=self.split, situation=situation, transition=step)
            for situation, step in self._steps(seed, noise_seed=index)
        ]

    def _steps(self, seed: int, noise_seed: int) -> list[tuple[Situation, Transition]]:
        run = EpisodeRun(self.world, seed=seed, noise_seed=noise_seed, split=self.split, policy=self.policy.name)
        steps: list[tuple[Situation, Transition]] = []
        while not run.over:
            before, history = run.situation, tuple(run.transitions)
            steps.append((_with_history(before, history), run.advance(self.policy.act(run.moment))))
        return steps


def _with_history(situation: Situation, history: tuple[Transition, ...]) -> Situation:
    """The situation as it was: a running episode's history grows under its situations."""
    return Situation(
        instruction=situation.instruction, observation=situation.observation, actions=situation.actions,
        history=history, steps_left=situation.steps_left,
    )  # fmt: skip
