"""Planners against exact models: they find what there is to find, and avoid what is risky when told to."""

import numpy as np
import pytest
from tests.support.made_models import Lying, imagination_of

from terrella.core.types import Situation, Split, State
from terrella.policies.basic import Random
from terrella.trust.beliefs import Belief, certain
from terrella.trust.nearness import NearestData
from terrella.trust.risk import Assessor
from terrella.trust.truth import TrueModel
from terrella.use.plan import Planner
from terrella.use.plan_continuous import ContinuousPlanner
from terrella.use.policy_eval import evaluate_policy
from terrella.worlds.frozen_lake import FrozenLake
from terrella.worlds.sokoban import Sokoban


def success(config, planner, instances=20):
    played = evaluate_policy(config.build, planner, seeds=range(instances), split=Split.TEST, side_by_side=1)
    return float(np.mean(played.successes))


def planner(config, model=None, **settings):
    return Planner(Planner.Config(**settings), imagination_of(model or TrueModel(config.build())).assessor)


def test_enumeration_with_the_truth_is_optimal_on_firm_ice_and_near_it_on_slippery():
    firm = FrozenLake.Config(size=3)
    assert success(firm, planner(firm, depth=8)) == 1.0
    slippery = FrozenLake.Config(size=3, success_rate=2 / 3)
    assert success(slippery, planner(slippery, depth=8), 60) > success(slippery, Random.Config().build(), 60) + 0.3


@pytest.mark.parametrize(("method", "width"), [("beam", 64), ("best_of_n", 256)])
def test_paths_find_the_goal_too(method, width):
    firm = FrozenLake.Config(size=3)
    assert success(firm, planner(firm, method=method, depth=5, width=width)) >= 0.9


def test_deeper_is_better_on_sokoban_and_costs_more():
    rooms = Sokoban.Config()
    shallow, deep = planner(rooms, depth=1), planner(rooms, depth=10)
    assert success(rooms, shallow, 8) < success(rooms, deep, 8) == 1.0
    assert deep.spent.questions / deep.spent.plans > 5 * shallow.spent.questions / shallow.spent.plans


def test_a_planner_believes_a_model_that_lies():
    firm = FrozenLake.Config(size=3)
    blind = Lying(firm.build(), lambda question: question.action != "Left")
    assert success(firm, planner(firm, blind, depth=8)) < 0.8


class Tempting(TrueModel):
    """One action pays ten, says the model, which has never seen it."""

    def believe(self, questions):
        told = super().believe(questions)
        gold = lambda q: Belief((certain(q.situation.observation, 10.0, True, True),))  # noqa: E731
        return [gold(q) if q.action == "Up" else b for q, b in zip(questions, told, strict=True)]


class Known(Assessor):
    """A risk of 1 for what was never seen."""

    def assess(self, questions):
        return [(b, float(q.action == "Up")) for q, b in zip(questions, self.model.believe(questions), strict=True)]


def test_risk_has_its_price():
    firm = FrozenLake.Config(size=3)
    assessor = Known(Tempting(firm.build()), NearestData([]), None)
    greedy = Planner(Planner.Config(depth=8), assessor)
    careful = Planner(Planner.Config(depth=8, risk_weight=20.0), assessor)
    assert success(firm, greedy) < 0.5 < success(firm, careful)


class Ball:
    """A point that moves by what it is told; reward is nearness to (0.6, -0.3)."""

    def believe(self, questions):
        found = []
        for question in questions:
            here = np.array(question.situation.observation.value) + 0.5 * np.array(question.action.split(), float)
            far = float(np.linalg.norm(here - [0.6, -0.3]))
            found.append(Belief((certain(State.of([round(float(x), 6) for x in here]), -far, far < 0.01, far < 0.01),)))
        return found


def test_numbers_are_planned_by_the_cross_entropy_method():
    settings = ContinuousPlanner.Config(size=2, depth=2, rounds=8, candidates=80)
    assessor = Assessor(Ball(), NearestData([]), None)
    tool = ContinuousPlanner(settings, assessor, lambda vector: " ".join(f"{x:.4f}" for x in vector))
    situation = Situation(instruction="", observation=State.of([0.0, 0.0]), actions=(), history=(), steps_left=5)
    plan = tool.plan(situation)
    assert np.linalg.norm(plan.actions[0] * 0.5 - [0.5, -0.3]) < 0.15  # 0.5 is as far right as one step goes
    assert plan.score > tool.scores(situation, np.zeros((1, 2, 2)))[0] + 0.5
    assert (tool.plan(situation).actions == plan.actions).all()  # a seed gives the same plan
