"""The exact dynamics of a world, and baselines without a model, as `WorldModel`s.

Learned models are measured against these. `TrueModel` reads the distribution from the world itself;
in a world whose state cannot be read back, the recorded step is the truth (`seen_truth`).
`NoChange` predicts that nothing happens; `NearestCopy` copies the result of the most similar
recorded step.
    truth = TrueModel(world).predict([query])[0]
    copied = NearestCopy(NearestData(transitions)).predict([query])[0]
"""

from __future__ import annotations

from collections.abc import Sequence

from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Observation, Transition
from terrella.core.world import StateWorld, World
from terrella.trust.nearness import NearestData
from terrella.trust.predictive import certain


class TrueModel:
    """The exact distribution over results, for worlds whose state can be read from observations."""

    def __init__(self, world: World) -> None:
        """The world is queried for outcomes but never stepped."""
        self.world = world

    @classmethod
    def supports(cls, world: World) -> bool:
        """Whether the world can give the outcomes of any observation and action."""
        return isinstance(world, StateWorld)

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        """The true distribution for each query.

        It is empty if the observation does not render any state.
        """
        return [self._truth(query) for query in queries]

    def _truth(self, query: Query) -> PredictiveDistribution:
        world = self.world
        assert isinstance(world, StateWorld)
        state = world.view.read(query.situation.observation)
        if state is None:
            return PredictiveDistribution(())
        # A world may list a result twice, or with probability 0.
        chances: dict[tuple[Observation, float, bool, bool], float] = {}
        for result in world.truth(state, query.action):
            shown = world.view.show(result.state)
            key = (shown, result.reward, result.terminated, result.success)
            chances[key] = chances.get(key, 0.0) + result.probability
        likeliest_first = sorted(chances.items(), key=lambda item: -item[1])
        return PredictiveDistribution(
            tuple(certain(*key, chance) for key, chance in likeliest_first if chance > 0)
        )


def seen_truth(step: Transition) -> PredictiveDistribution:
    """The recorded result with probability 1, for a world that cannot list other outcomes."""
    success = step.terminated and bool(step.info.get("success", step.reward > 0))
    return PredictiveDistribution(
        (certain(step.next_observation, step.reward, step.terminated, success),)
    )


class NoChange:
    """Baseline: the observation stays the same, with reward 0, and the episode goes on."""

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        return [
            PredictiveDistribution((certain(query.situation.observation, 0.0, False, False),))
            for query in queries
        ]


class NearestCopy:
    """Baseline: copies the result of the most similar recorded step with the same action."""

    def __init__(self, data: NearestData) -> None:
        """`data` is the same index that measures distances to the training data."""
        self.data = data

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        pairs = [(query.situation.observation, query.action) for query in queries]
        _, nearest = self.data.look_up(pairs)
        return [
            seen_truth(step) if step is not None else PredictiveDistribution(()) for step in nearest
        ]
