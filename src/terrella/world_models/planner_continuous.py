"""Planning with actions that are vectors: the cross-entropy method (CEM) and MPPI.

A planner is a policy. At every step it draws sequences of actions, follows them in the model along
its most likely results, draws again around the good ones, and takes the first action of the plan
(model-predictive control). All sequences of a decision share the model's batches.
    config = ContinuousPlanner.Config(size=2, method="mppi")
    planner = ContinuousPlanner(config, risk_estimator, write_action, value)
    evaluate_policy(world.build, planner, seeds=range(40), split=Split.TEST)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from terrella.core.bounds import check_above_zero, check_least, check_share
from terrella.core.config import Configurable
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Moment, Observation, Situation
from terrella.trust.risk import RiskEstimator
from terrella.world_models.planner import PlanCost

Array = NDArray[np.float64]
Value = Callable[[Sequence[Observation]], Array]
"""How good observations are; it may be of any scale."""
LEAST_SCALE = 0.02
"""Standard deviation of the actions that are drawn, at least: the search never stands still."""


@dataclass(frozen=True, kw_only=True)
class ContinuousPlan:
    """The planned action sequence, and the best score of any sequence that was tried."""

    actions: Array
    """[depth, size]: take the first action, then plan again."""
    score: float


class ContinuousPlanner(Configurable):
    """Looks ahead with a world model before each action, which is a vector in [-1, 1]."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """The method, how far and how widely it searches, and what it looks for."""

        size: int
        """Length of an action vector."""
        method: Literal["cem", "mppi"] = "cem"
        """`cem` draws again around the mean of an elite and takes its best sequence.

        `mppi` weighs all sequences by the exponential of their scores and takes the weighted mean.
        """
        depth: int = 4
        candidates: int = 64
        iterations: int = 4
        elite_share: float = 0.125
        """For `cem`: the share of the sequences that the next ones are drawn around."""
        temperature: float = 0.3
        """For `mppi`: the temperature of its weights, in standard deviations of the scores."""
        scale: float = 0.7
        """Standard deviation of the actions that are drawn first."""
        smoothness: float = 0.5
        """Share of that variance that all steps of a sequence have in common.

        Above 0, more sequences go somewhere instead of to and fro.
        """
        looks_for: Literal["mean", "best", "last"] = "mean"
        """How the values of a sequence's observations are one: `mean` prefers to be early."""
        discount: float = 0.98
        risk_weight: float = 0.0
        """The penalty for a step of risk 1, in units of reward."""

        def __post_init__(self) -> None:
            """Refuse a search that looks at nothing."""
            check_least(self, size=1, depth=1, candidates=2, iterations=1, risk_weight=0)
            check_share(self, "elite_share", "smoothness", "discount")
            check_above_zero(self, "elite_share", "temperature", "scale")

    config: Config

    def __init__(
        self,
        config: Config,
        risk_estimator: RiskEstimator,
        write: Callable[[Array], str],
        value: Value | None = None,
    ) -> None:
        """`write` makes an action's text of a vector. Scores are rewards, plus `value` if given.

        A reward that is 0 until success leaves most sequences equal; a graded value does not.
        """
        super().__init__(config)
        self.risk_estimator = risk_estimator
        self.write = write
        self.value = value
        self.cost = PlanCost()
        self.name = f"{config.method}({config.depth},{config.candidates}x{config.iterations})"

    def act(self, moment: Moment) -> str:
        """The first action of the plan."""
        situation = Situation(
            instruction=moment.instruction,
            observation=moment.observation,
            actions=moment.actions,
            history=tuple(moment.history),
            steps_left=moment.steps_left,
        )
        return self.write(self.plan(situation, moment.rng).actions[0])

    def plan(self, situation: Situation, rng: np.random.Generator) -> ContinuousPlan:
        """Search for a sequence of actions.

        Each iteration tries the plan so far again, so that a good one is not lost.
        """
        config = self.config
        self.cost.plans += 1
        depth = max(1, min(config.depth, situation.steps_left))
        centre = plan = np.zeros((depth, config.size))
        scale = np.full(centre.shape, config.scale)
        best = -np.inf
        for _ in range(config.iterations):
            candidates = np.clip(centre + scale * self._noise(rng, depth), -1.0, 1.0)
            candidates[0] = plan
            scores = self.scores(situation, candidates)
            centre, scale = self._refit(candidates, scores)
            plan = centre if config.method == "mppi" else candidates[int(np.argmax(scores))]
            best = max(best, float(scores.max()))
        return ContinuousPlan(actions=plan, score=best)

    def _noise(self, rng: np.random.Generator, depth: int) -> Array:
        """Standard normal numbers [candidates, depth, size], alike in the steps of a sequence."""
        config = self.config
        shared = rng.standard_normal((config.candidates, 1, config.size))
        own = rng.standard_normal((config.candidates, depth, config.size))
        noise: Array = config.smoothness**0.5 * shared + (1.0 - config.smoothness) ** 0.5 * own
        return noise

    def _refit(self, candidates: Array, scores: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the good sequences."""
        weights = self._weights(scores)[:, None, None]
        centre = (weights * candidates).sum(0)
        variance = (weights * (candidates - centre) ** 2).sum(0)
        return centre, np.maximum(np.sqrt(variance), LEAST_SCALE)

    def _weights(self, scores: Array) -> Array:
        """What each sequence counts; the weights sum to 1."""
        if self.config.method == "cem":
            weights = np.zeros(len(scores))
            weights[np.argsort(-scores, kind="stable")[: self._elite]] = 1.0 / self._elite
            return weights
        spread = max(float(scores.std()), 1e-12)
        weights = np.exp((scores - scores.max()) / (spread * self.config.temperature))
        shares: Array = weights / weights.sum()
        return shares

    @property
    def _elite(self) -> int:
        return max(1, round(self.config.elite_share * self.config.candidates))

    # --- scores -----------------------------------------------------------------------------------

    def scores(self, situation: Situation, candidates: Array) -> Array:
        """The score of each sequence [candidates, depth, size].

        Discounted rewards, minus the penalty for risk, plus the value of what is seen on the way.
        """
        courses = [_Course(situation) for _ in candidates]
        for index in range(candidates.shape[1]):
            self._advance(courses, candidates[:, index], self.config.discount**index)
        rewards = np.array([course.score for course in courses])
        return rewards if self.value is None else rewards + self._values(self.value, courses)

    def _advance(self, courses: Sequence[_Course], actions: Array, weight: float) -> None:
        """Take one action in each course that goes on, as one batch of questions."""
        running = [number for number, course in enumerate(courses) if not course.over]
        queries = [Query(courses[n].situation, self.write(actions[n])) for n in running]
        self.cost.queries += len(queries)
        assessed = self.risk_estimator.assess(queries)
        for n, query, (distribution, risk) in zip(running, queries, assessed, strict=True):
            courses[n].score -= weight * self.config.risk_weight * risk
            courses[n].take(query, distribution, weight)
        for course in courses:
            course.seen.append(course.situation.observation if course.readable else None)

    def _values(self, value: Value, courses: Sequence[_Course]) -> Array:
        """One value for each course; a course that has ended goes on seeing its last observation.

        What could not be read is as bad as the worst that any course sees.
        """
        readable = [each for course in courses for each in course.seen if each is not None]
        if not readable:
            return np.zeros(len(courses))
        known = iter(map(float, value(readable)))
        rows = [[np.nan if e is None else next(known) for e in course.seen] for course in courses]
        table = np.array(rows, dtype=np.float64)
        table[np.isnan(table)] = np.nanmin(table)
        ways = {"mean": table.mean(1), "best": table.max(1), "last": table[:, -1]}
        chosen: Array = ways[self.config.looks_for]
        return chosen


@dataclass
class _Course:
    """A sequence of actions, as far as it was followed."""

    situation: Situation
    score: float = 0.0
    over: bool = False
    readable: bool = True
    seen: list[Observation | None] = field(default_factory=list)

    def take(self, query: Query, distribution: PredictiveDistribution, weight: float) -> None:
        """Go on to the most likely result; a course without one is over."""
        if not distribution.predictions:
            self.over, self.readable = True, False
            return
        predicted = distribution.predictions[0]
        self.score += weight * predicted.reward
        self.situation = query.after(predicted)
        self.over = predicted.terminated
