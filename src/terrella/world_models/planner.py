"""Planning in a world model with named actions: enumeration, beam search, best of n.

`planner_continuous.py` is for actions that are vectors of numbers. A planner is a policy: at every
step it looks ahead in predictions and takes the first action of the best plan (model-predictive
control). `risk_weight` is the penalty, in units of reward, for a step of risk 1.
    policy = Planner(Planner.Config(method="enumerate", depth=8), risk_estimator)
    policy.act(moment)
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from terrella.core.bounds import check_least, check_share
from terrella.core.config import Configurable
from terrella.core.errors import PolicyError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Moment, Observation, Situation
from terrella.trust.risk import RiskEstimator

Assessed = tuple[PredictiveDistribution, float]
"""A predicted distribution and its risk."""


@dataclass
class PlanCost:
    """How many plans were made, and the model queries they took."""

    plans: int = 0
    queries: int = 0


@dataclass(order=True)
class _Path:
    """A sequence of actions along the most likely results."""

    score: float
    actions: tuple[str, ...] = field(compare=False)
    situation: Situation = field(compare=False)
    over: bool = field(compare=False, default=False)


class Planner(Configurable):
    """Looks ahead with a world model before each action."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Search method, depth and width."""

        method: Literal["enumerate", "beam", "best_of_n"] = "enumerate"
        """`enumerate` expands all actions over all predicted states, with their probabilities.

        The others follow only the most likely result of each action.
        """
        depth: int = 4
        width: int = 16
        """Paths that a beam keeps; sequences that best_of_n tries."""
        most_states: int = 2000
        """Maximum number of states that enumeration expands; states beyond it have value 0."""
        discount: float = 0.98
        """Below 1, so that earlier rewards are preferred."""
        risk_weight: float = 0.0

        def __post_init__(self) -> None:
            """Refuse a search that looks at nothing."""
            check_least(self, depth=1, width=1, most_states=1)
            check_share(self, "discount")

    config: Config

    def __init__(self, config: Config, risk_estimator: RiskEstimator) -> None:
        """`risk_estimator` predicts, and gives the risk of each prediction."""
        super().__init__(config)
        self.risk_estimator = risk_estimator
        self.cost = PlanCost()
        self.name = f"planner({config.method},{config.depth})"

    def act(self, moment: Moment) -> str:
        """The first action of the best plan.

        Ties are broken at random, so that a planner that finds no reward still moves.
        """
        actions = moment.actions or tuple(moment.proposals())
        if not actions:
            raise PolicyError(
                self.name, "no named actions to plan with", "use ContinuousPlanner for numbers"
            )
        self.cost.plans += 1
        situation = Situation(
            instruction=moment.instruction,
            observation=moment.observation,
            actions=actions,
            history=tuple(moment.history),
            steps_left=moment.steps_left,
        )
        depth = min(self.config.depth, moment.steps_left)
        methods = {
            "enumerate": self._enumerate,
            "beam": self._beam,
            "best_of_n": self._best_of_n,
        }
        values = methods[self.config.method](situation, depth, moment.rng)
        best = max(values.values())
        ties = [action for action, value in values.items() if value >= best - 1e-9]
        return ties[int(moment.rng.integers(len(ties)))]

    def _assess(self, queries: Sequence[Query]) -> list[Assessed]:
        self.cost.queries += len(queries)
        return self.risk_estimator.assess(queries)

    # --- enumerate: all actions over all predicted states -----------------------------------------

    def _enumerate(
        self, situation: Situation, depth: int, rng: np.random.Generator
    ) -> dict[str, float]:
        """Expected value of each action: expand level by level, then back up the values."""
        actions, first = situation.actions, situation.observation
        assessed: dict[tuple[Observation, str], Assessed] = {}
        level, expanded = [situation], {first}
        for remaining in reversed(range(depth)):
            queries = [Query(reached, action) for reached in level for action in actions]
            results = self._assess(queries)
            pairs = ((query.situation.observation, query.action) for query in queries)
            assessed.update(zip(pairs, results, strict=True))
            if remaining:
                level = self._new_situations(queries, results, expanded)
                expanded.update(reached.observation for reached in level)
        values: dict[Observation, float] = {}
        for _ in range(depth - 1):
            values = {
                observation: max(self._value(assessed[observation, a], values) for a in actions)
                for observation in expanded
            }
        return {action: self._value(assessed[first, action], values) for action in actions}

    def _new_situations(
        self, queries: Sequence[Query], results: Sequence[Assessed], known: AbstractSet[Observation]
    ) -> list[Situation]:
        """Predicted situations whose observation is new, up to the limit of states.

        An observation is expanded once, with the history of the first way to it.
        """
        reached: dict[Observation, Situation] = {}
        for query, (distribution, _) in zip(queries, results, strict=True):
            for predicted in distribution.predictions:
                if not predicted.terminated and predicted.observation not in known:
                    reached.setdefault(predicted.observation, query.after(predicted))
        return list(reached.values())[: max(0, self.config.most_states - len(known))]

    def _value(self, assessed: Assessed, later: dict[Observation, float]) -> float:
        distribution, risk = assessed
        value = -self.config.risk_weight * risk
        for predicted, share in zip(distribution.predictions, distribution.shares, strict=True):
            rest = 0.0 if predicted.terminated else later.get(predicted.observation, 0.0)
            value += share * (predicted.reward + self.config.discount * rest)
        return float(value)

    # --- beam and best of n: paths along the most likely results ----------------------------------

    def _beam(self, situation: Situation, depth: int, rng: np.random.Generator) -> dict[str, float]:
        paths = [_Path(0.0, (), situation)]
        for index in range(depth):
            running = [path for path in paths if not path.over]
            pairs = [(path, action) for path in running for action in situation.actions]
            grown = self._extend(pairs, index) + [path for path in paths if path.over]
            # Shuffled, so that the order of the actions does not decide between equal scores.
            order = rng.permutation(len(grown))
            best = sorted((grown[i] for i in order), key=lambda path: -path.score)
            paths = _distinct(best)[: self.config.width]
        return _best_by_first_action(paths)

    def _best_of_n(
        self, situation: Situation, depth: int, rng: np.random.Generator
    ) -> dict[str, float]:
        actions = situation.actions
        # First actions are tried in turn; the rest of each sequence is drawn at random.
        sequences = [
            [actions[n % len(actions)], *rng.choice(actions, depth - 1)]
            for n in range(self.config.width)
        ]
        paths = [_Path(0.0, (), situation) for _ in sequences]
        for index in range(depth):
            running = [n for n, path in enumerate(paths) if not path.over]
            pairs = [(paths[n], str(sequences[n][index])) for n in running]
            for n, path in zip(running, self._extend(pairs, index), strict=True):
                paths[n] = path
        return _best_by_first_action(paths)

    def _extend(self, pairs: Sequence[tuple[_Path, str]], index: int) -> list[_Path]:
        """Extend each path by its action, in one batch of queries."""
        queries = [Query(path.situation, action) for path, action in pairs]
        return [
            self._extended(path, query, each, index)
            for (path, _), query, each in zip(pairs, queries, self._assess(queries), strict=True)
        ]

    def _extended(self, path: _Path, query: Query, assessed: Assessed, index: int) -> _Path:
        distribution, risk = assessed
        score = path.score - self.config.risk_weight * risk * self.config.discount**index
        actions = (*path.actions, query.action)
        if not distribution.predictions:
            return _Path(score, actions, path.situation, over=True)
        predicted = distribution.predictions[0]
        score += predicted.reward * self.config.discount**index
        return _Path(score, actions, query.after(predicted), predicted.terminated)


def _distinct(paths: Sequence[_Path]) -> list[_Path]:
    """The first, and so the best, path to each observation."""
    first: dict[tuple[Observation, bool], _Path] = {}
    for path in paths:
        first.setdefault((path.situation.observation, path.over), path)
    return list(first.values())


def _best_by_first_action(paths: Sequence[_Path]) -> dict[str, float]:
    values: dict[str, float] = {}
    for path in paths:
        values[path.actions[0]] = max(values.get(path.actions[0], -np.inf), path.score)
    return values
