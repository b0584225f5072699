"""A perfect model of a world: the world itself, copied and stepped.

It is the upper bound of planning in a learned model, and it is not free: `steps` counts the real
steps that its copies take. It answers about the episode that the world is playing, so one world is
played at a time.
    world = Tabletop.Config().build()
    model = ForkedWorld(world)
    evaluate_policy(lambda: world, planner_in(model), seeds=seeds, split=Split.TEST, num_envs=1)
"""

from __future__ import annotations

from collections.abc import Sequence

from terrella.core.errors import ConfigError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Prediction
from terrella.core.world import World


class ForkedWorld:
    """`core.protocols.WorldModel` over copies of a world."""

    def __init__(self, world: World) -> None:
        """`world` is the one that is played."""
        self.world = world
        self.steps = 0
        """Steps that copies took, those of `World.fork` included."""
        self._now: tuple[str, int, int] | None = None
        self._copies: dict[tuple[str, ...], tuple[World, Prediction]] = {}

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        """What the world would do: one certain prediction for each query."""
        now = (self.world.instance, self.world.noise_seed, self.world.steps)
        if now != self._now:
            self._now, self._copies = now, {}
        return [PredictiveDistribution((self._after(self._actions(query)),)) for query in queries]

    def _actions(self, query: Query) -> tuple[str, ...]:
        """The imagined actions, which come after those that the world has taken."""
        history = query.situation.history[self.world.steps :]
        before = history[0].observation if history else query.situation.observation
        if before != self.world._observe():
            raise ConfigError(
                "forked world",
                "the question is about another episode than the one that the world plays",
                "play one world at a time (num_envs=1), and the one that the model was given",
            )
        return (*(step.action for step in history), query.action)

    def _after(self, actions: tuple[str, ...]) -> Prediction:
        """The result of the last action; a copy is kept for each sequence of actions."""
        if actions not in self._copies:
            before = self._copies[actions[:-1]][0] if len(actions) > 1 else self.world
            copy = before.fork()
            observation, reward, terminated, _, info = copy.step(actions[-1])
            self.steps += 1 + before.steps_to_fork
            prediction = Prediction(
                observation=observation,
                reward=reward,
                terminated=terminated,
                success=bool(info["success"]),
                logprob=0.0,
                risk=0.0,
            )
            self._copies[actions] = copy, prediction
        return self._copies[actions][1]
