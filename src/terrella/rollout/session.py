"""A world and its running episode: the synchronous half of an env worker, in any process.

session = EpisodeSession(world); session.start(task, member=0); session.act("Up")
"""

from __future__ import annotations

from dataclasses import dataclass

from terrella.core.episode import EpisodeRun
from terrella.core.errors import EngineError
from terrella.core.tokens import Task
from terrella.core.types import Episode, Situation, Stop, Transition
from terrella.core.world import World


class EnvWorkerError(Exception):
    """The world of a worker raised, hung or died; the message names it."""

    def __init__(self, stop: Stop, message: str) -> None:
        super().__init__(message)
        self.stop = stop


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of an action."""

    step: Transition
    situation: Situation
    over: bool


class EpisodeSession:
    """One world, one running episode at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.run: EpisodeRun | None = None

    def start(self, task: Task, member: int) -> Situation:
        self.run = EpisodeRun(
            self.world,
            seed=task.seed,
            noise_seed=task.noise_seed + member,
            split=task.split,
            policy="model",
            written=task.written,
        )
        return self.run.situation

    async def prepare(self, action: str) -> None:
        """What the world waits for before the step; beside other sessions of this process."""
        await self.running.world.prepare(action)

    def act(self, action: str) -> StepResult:
        run = self.running
        return StepResult(run.advance(action), run.situation, run.over)

    def finish(self, stop: Stop) -> Episode:
        """End the episode if the world has not, and return the record."""
        run = self.running
        if not run.over:
            run.end(stop)
        return run.episode

    def leave(self) -> None:
        """Nobody goes on with the episode, whether it is over or not."""
        self.world.leave()

    @property
    def running(self) -> EpisodeRun:
        if self.run is None:
            raise EngineError(self.world.name, "no episode was started in this session")
        return self.run
