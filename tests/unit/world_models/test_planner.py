"""Planners with exact models: they find the goal, and avoid risk if told to."""

import numpy as np
import pytest
from tests.support.made_models import Lying, certified_model_of

from terrella.core.predictive import PredictiveDistribution
from terrella.core.types import Situation, Split, State
from terrella.evals.policy_eval import evaluate_policy
from terrella.policies.basic import Random
from terrella.trust.nearness import NearestData
from terrella.trust.predictive import certain
from terrella.trust.risk import RiskEstimator
from terrella.trust.truth import TrueModel
from terrella.world_models.planner import Planner
from terrella.world_models.planner_continuous import ContinuousPlanner
from terrella.worlds.frozen_lake import FrozenLake
from terrella.worlds.sokoban import Sokoban


def success(config, planner, instances=20):
    result = evaluate_policy(
        config.build, planner, seeds=range(instances), split=Split.TEST, num_envs=1
    )
    return float(np.mean(result.successes))


def planner(config, model=None, **settings):
    return Planner(
        Planner.Config(**settings),
        certified_model_of(model or TrueModel(config.build())).risk_estimator,
    )


def test_enumeration_with_the_truth_is_optimal_on_firm_ice_and_near_it_on_slippery():
    firm = FrozenLake.Config(size=3)
    assert success(firm, planner(firm, depth=8)) == 1.0
    slippery = FrozenLake.Config(size=3, success_rate=2 / 3)
    random_success = success(slippery, Random.Config().build(), 60)
    assert success(slippery, planner(slippery, depth=8), 60) > random_success + 0.3


@pytest.mark.parametrize(("method", "width"), [("beam", 64), ("best_of_n", 256)])
def test_paths_find_the_goal_too(method, width):
    firm = FrozenLake.Config(size=3)
    assert success(firm, planner(firm, method=method, depth=5, width=width)) >= 0.9


def test_deeper_is_better_on_sokoban_and_costs_more():
    rooms = Sokoban.Config()
    shallow, deep = planner(rooms, depth=1), planner(rooms, depth=10)
    assert success(rooms, shallow, 8) < success(rooms, deep, 8) == 1.0
    queries_per_plan = [each.cost.queries / each.cost.plans for each in (shallow, deep)]
    assert queries_per_plan[1] > 5 * queries_per_plan[0]


def test_a_planner_believes_a_model_that_lies():
    firm = FrozenLake.Config(size=3)
    blind = Lying(firm.build(), lambda query: query.action != "Left")
    assert success(firm, planner(firm, blind, depth=8)) < 0.8


class Tempting(TrueModel):
    """Wrongly predicts a reward of ten for one action that it has never seen."""

    def predict(self, queries):
        distributions = super().predict(queries)
        return [
            self.jackpot(query) if query.action == "Up" else distribution
            for query, distribution in zip(queries, distributions, strict=True)
        ]

    @staticmethod
    def jackpot(query):
        return PredictiveDistribution((certain(query.situation.observation, 10.0, True, True),))


class UnseenIsRisky(RiskEstimator):
    """A risk of 1 for the action that was never seen."""

    def assess(self, queries):
        return [
            (distribution, float(query.action == "Up"))
            for query, distribution in zip(queries, self.model.predict(queries), strict=True)
        ]


def test_risk_weight_makes_the_planner_avoid_risk():
    firm = FrozenLake.Config(size=3)
    risk_estimator = UnseenIsRisky(Tempting(firm.build()), NearestData([]), None)
    greedy = Planner(Planner.Config(depth=8), risk_estimator)
    careful = Planner(Planner.Config(depth=8, risk_weight=20.0), risk_estimator)
    assert success(firm, greedy) < 0.5 < success(firm, careful)


class Ball:
    """A point that moves by half of the action; the reward is minus its distance to a goal."""

    GOAL = (0.6, -0.3)

    def predict(self, queries):
        return [PredictiveDistribution((self.move(query),)) for query in queries]

    def move(self, query):
        before = np.array(query.situation.observation.value)
        after = before + 0.5 * np.array(query.action.split(), float)
        distance = float(np.linalg.norm(after - self.GOAL))
        observation = State.of([round(float(x), 6) for x in after])
        return certain(observation, -distance, distance < 0.01, distance < 0.01)


def test_action_vectors_are_planned_by_the_cross_entropy_method():
    settings = ContinuousPlanner.Config(size=2, depth=2, rounds=8, candidates=80)
    risk_estimator = RiskEstimator(Ball(), NearestData([]), None)
    planner = ContinuousPlanner(
        settings, risk_estimator, lambda vector: " ".join(f"{x:.4f}" for x in vector)
    )
    situation = Situation(
        instruction="", observation=State.of([0.0, 0.0]), actions=(), history=(), steps_left=5
    )
    plan = planner.plan(situation)
    # One step reaches at most 0.5 to the right.
    assert np.linalg.norm(plan.actions[0] * 0.5 - [0.5, -0.3]) < 0.15
    assert plan.score > planner.scores(situation, np.zeros((1, 2, 2)))[0] + 0.5
    assert (planner.plan(situation).actions == plan.actions).all()  # a seed gives the same plan
