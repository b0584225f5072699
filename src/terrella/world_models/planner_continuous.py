"""Planning with actions that are vectors: model-predictive control by the cross-entropy method.

Sequences of action vectors are drawn, followed in the model along its most likely results, and
drawn again around the best ones. `write` turns a vector into the action text for the model.
    planner = ContinuousPlanner(ContinuousPlanner.Config(size=2), risk_estimator, write)
    planner.plan(situation).actions[0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from terrella.core.config import Configurable
from terrella.core.predictive import Query
from terrella.core.seeds import POLICY_STREAM, stream
from terrella.core.types import Situation
from terrella.trust.risk import RiskEstimator

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ContinuousPlan:
    """The best action sequence, its score and its cost."""

    actions: Array
    """[depth, size]: take the first action, then plan again."""
    score: float
    queries: int


class ContinuousPlanner(Configurable):
    """The cross-entropy method over a world model."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Search depth, number of candidates, and the bounds of actions."""

        size: int
        """Length of an action vector."""
        depth: int = 4
        low: float = -1.0
        high: float = 1.0
        candidates: int = 64
        elite: int = 8
        rounds: int = 5
        discount: float = 0.98
        risk_weight: float = 0.0

    config: Config

    def __init__(
        self, config: Config, risk_estimator: RiskEstimator, write: Callable[[Array], str]
    ) -> None:
        super().__init__(config)
        self.risk_estimator = risk_estimator
        self.write = write

    def plan(self, situation: Situation, seed: int = 0) -> ContinuousPlan:
        """Search for the best action sequence.

        Each round tries the best sequence so far again, so it is never lost.
        """
        config = self.config
        rng = stream(POLICY_STREAM, seed)
        shape = (config.depth, config.size)
        spread = config.high - config.low
        centre = np.full(shape, (config.low + config.high) / 2)
        scale = np.full(shape, spread / 2)
        best, score = centre, -np.inf
        for _ in range(config.rounds):
            drawn = rng.normal(centre, scale, (config.candidates, *shape))
            candidates = np.clip(drawn, config.low, config.high)
            candidates[0] = best
            scores = self.scores(situation, candidates)
            elite = np.argsort(-scores)[: config.elite]
            centre = candidates[elite].mean(0)
            scale = candidates[elite].std(0) + 0.01 * spread
            best, score = candidates[elite[0]].copy(), float(scores[elite[0]])
        return ContinuousPlan(
            actions=best, score=score, queries=config.rounds * config.candidates * config.depth
        )

    def scores(self, situation: Situation, candidates: Array) -> Array:
        """Discounted return minus the risk penalty of each sequence [candidates, depth, size].

        Sequences are followed along the most likely results.
        """
        scores = np.zeros(len(candidates))
        observations = [situation.observation] * len(candidates)
        alive = np.ones(len(candidates), bool)
        for index in range(candidates.shape[1]):
            running = np.flatnonzero(alive)
            weight = self.config.discount**index
            queries = [
                Query(
                    replace(situation, observation=observations[n]),
                    self.write(candidates[n, index]),
                )
                for n in running
            ]
            assessed = self.risk_estimator.assess(queries)
            for n, (distribution, risk) in zip(running, assessed, strict=True):
                scores[n] -= weight * self.config.risk_weight * risk
                if not distribution.predictions:
                    alive[n] = False
                    continue
                predicted = distribution.predictions[0]
                scores[n] += weight * predicted.reward
                observations[n] = predicted.observation
                alive[n] = not predicted.terminated
        return scores
