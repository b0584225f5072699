"""Planning with actions that are numbers: model-predictive control by the cross-entropy method.

Sequences of action vectors are drawn, followed in the model along its likeliest results, and drawn again around the
best ones. `write` says how a vector is told to the model.
    plan = ContinuousPlanner(ContinuousPlanner.Config(size=2), assessor, write).plan(situation); plan.actions[0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from terrella.core.config import Configurable
from terrella.core.instances import POLICY_STREAM, stream
from terrella.core.types import Situation
from terrella.trust.beliefs import Question
from terrella.trust.risk import Assessor

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ContinuousPlan:
    """What was found."""

    actions: Array
    """[depth, size]: do the first row, then plan again."""
    score: float
    questions: int


class ContinuousPlanner(Configurable):
    """The cross-entropy method over a world model."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """How far to look, how much to try, and the box that actions lie in."""

        size: int
        """Numbers in an action."""
        depth: int = 4
        low: float = -1.0
        high: float = 1.0
        candidates: int = 64
        elite: int = 8
        rounds: int = 5
        discount: float = 0.98
        risk_weight: float = 0.0

    config: Config

    def __init__(self, config: Config, assessor: Assessor, write: Callable[[Array], str]) -> None:
        """`write` turns an action vector into what the model is told."""
        super().__init__(config)
        self.assessor, self.write = assessor, write

    def plan(self, situation: Situation, seed: int = 0) -> ContinuousPlan:
        """The best sequence met; what was best so far is tried again in each round, so it is never lost."""
        config, rng = self.config, stream(POLICY_STREAM, seed)
        shape, spread = (config.depth, config.size), config.high - config.low
        centre, scale = np.full(shape, (config.low + config.high) / 2), np.full(shape, spread / 2)
        best, score = centre, -np.inf
        for _ in range(config.rounds):
            drawn = np.clip(rng.normal(centre, scale, (config.candidates, *shape)), config.low, config.high)
            drawn[0] = best
            scores = self.scores(situation, drawn)
            elite = np.argsort(-scores)[: config.elite]
            centre, scale = drawn[elite].mean(0), drawn[elite].std(0) + 0.01 * spread
            best, score = drawn[elite[0]].copy(), float(scores[elite[0]])
        return ContinuousPlan(actions=best, score=score, questions=config.rounds * config.candidates * config.depth)

    def scores(self, situation: Situation, drawn: Array) -> Array:
        """Return of each sequence [candidates, depth, size] along the likeliest results, less what its risk costs."""
        scores, seen = np.zeros(len(drawn)), [situation.observation] * len(drawn)
        alive = np.ones(len(drawn), bool)
        for place in range(drawn.shape[1]):
            going, weight = np.flatnonzero(alive), self.config.discount**place
            told = [self.write(drawn[n, place]) for n in going]
            asked = [Question(replace(situation, observation=seen[n]), a) for n, a in zip(going, told, strict=True)]
            for n, (belief, risk) in zip(going, self.assessor.assess(asked), strict=True):
                scores[n] -= weight * self.config.risk_weight * risk
                alive[n] = bool(belief.predictions) and not belief.predictions[0].terminated
                if belief.predictions:
                    scores[n] += weight * belief.predictions[0].reward
                    seen[n] = belief.predictions[0].observation
        return scores
