"""Planners with exact models: they find the goal, and avoid risk if told to."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.support.made_models import Lying, certified_model_of

from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Moment, Situation, Split, State
from terrella.core.world import Step, World
from terrella.evals.policy_eval import evaluate_policy
from terrella.policies.basic import Random
from terrella.trust.nearness import NearestData
from terrella.trust.predictive import certain
from terrella.trust.risk import RiskEstimator
from terrella.trust.truth import TrueModel
from terrella.world_models.forked import ForkedWorld
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


def write(vector):
    return " ".join(f"{number:.4f}" for number in vector)


def vector_planner(model, value=None, **settings):
    settings = ContinuousPlanner.Config(**settings)
    return ContinuousPlanner(settings, RiskEstimator(model, NearestData([]), None), write, value)


def at(*point, steps_left=5):
    return Situation(
        instruction="", observation=State.of(point), actions=(), history=(), steps_left=steps_left
    )


@pytest.mark.parametrize("method", ["cem", "mppi"])
def test_action_vectors_are_planned(method):
    planner = vector_planner(Ball(), size=2, method=method, depth=2, iterations=8, candidates=80)
    plan = planner.plan(at(0.0, 0.0), np.random.default_rng(0))
    assert planner.cost.plans == 1 and 0 < planner.cost.queries <= 8 * 80 * 2
    # One step reaches at most 0.5 to the right.
    assert np.linalg.norm(plan.actions[0] * 0.5 - [0.5, -0.3]) < 0.15
    assert np.abs(plan.actions).max() <= 1.0
    assert plan.score > planner.scores(at(0.0, 0.0), np.zeros((1, 2, 2)))[0] + 0.5
    assert (planner.plan(at(0.0, 0.0), np.random.default_rng(0)).actions == plan.actions).all()


class Recorded:
    """A model that keeps the questions; the observation counts the steps."""

    def __init__(self):
        self.queries = []

    def predict(self, queries):
        self.queries += queries
        return [
            PredictiveDistribution((certain(State.of([self.depth(q) + 1]), 0.0, False, False),))
            for q in queries
        ]

    @staticmethod
    def depth(query):
        return query.situation.observation.value[0]


def check_histories(queries, depth):
    """Each question names all planned actions before it, and the observations between them."""
    assert {len(query.situation.history) for query in queries} == set(range(depth))
    for query in queries:
        history = query.situation.history
        seen = [*(step.observation for step in history), query.situation.observation]
        assert [each.value for each in seen] == [[n] for n in range(len(seen))]
        assert all(a.next_observation == b for a, b in zip(history, seen[1:], strict=True))
        assert query.situation.steps_left == 5 - len(history)


def test_a_continuous_planner_tells_the_model_what_it_has_planned():
    model = Recorded()
    planner = vector_planner(model, size=1, depth=3, iterations=1, candidates=6)
    planner.plan(at(0), np.random.default_rng(0))
    check_histories(model.queries, 3)
    # The candidates go on with their own actions, not with those of others.
    paths = {tuple(step.action for step in query.situation.history) for query in model.queries}
    assert len([path for path in paths if len(path) == 2]) == 6


@pytest.mark.parametrize("method", ["enumerate", "beam", "best_of_n"])
def test_a_planner_of_named_actions_does_so_too(method):
    model = Recorded()
    config = Planner.Config(method=method, depth=3, width=4)
    planner = Planner(config, RiskEstimator(model, NearestData([]), None))
    planner.act(moment_of(at(0), ("go", "stay")))
    check_histories(model.queries, 3)


def moment_of(situation, actions):
    return Moment(
        instruction="",
        observation=situation.observation,
        actions=actions,
        history=[],
        steps_left=situation.steps_left,
        rng=np.random.default_rng(0),
        proposals=tuple,
        expert=str,
    )


class Swing:
    """Rewards the second step if both go to the same side: the action before is in the history."""

    def predict(self, queries):
        return [PredictiveDistribution((self.step(query),)) for query in queries]

    @staticmethod
    def step(query):
        before = [float(step.action) for step in query.situation.history]
        reward = float(query.action) * before[0] if before else 0.0
        return certain(query.situation.observation, reward, False, False)


@pytest.mark.parametrize("method", ["cem", "mppi"])
def test_the_outcome_may_depend_on_the_action_before(method):
    planner = vector_planner(
        Swing(), size=1, method=method, depth=2, iterations=6, temperature=0.1, smoothness=0.0
    )
    first, second = planner.plan(at(0), np.random.default_rng(1)).actions[:, 0]
    assert first * second > 0.7


class Track(World):
    """A point on a line that must come to 1; the reward says so only there."""

    rules = "Go right."
    verifier = None

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        max_steps: int = 8

    def _start(self, rng):
        self.point = round(float(rng.uniform(-0.4, 0.0)), 3)
        return self.point

    def _observe(self):
        return State.of([self.point])

    def _act(self, action):
        self.point = round(self.point + 0.25 * float(np.clip(float(action), -1, 1)), 3)
        done = self.point >= 1.0
        return Step(float(done), done, done, valid=True, effective=True)

    def actions(self):
        return ()

    def proposals(self, state):
        return ("-1.0", "-0.5", "0.0", "0.5", "1.0")


def position(observations):
    return np.array([observation.value[0] for observation in observations])


@pytest.mark.parametrize("method", ["cem", "mppi"])
@pytest.mark.parametrize("looks_for", ["mean", "best", "last"])
def test_with_a_perfect_model_and_a_graded_value_every_start_is_won(method, looks_for):
    world = Track.Config().build()
    model = ForkedWorld(world)
    settings = {"size": 1, "method": method, "looks_for": looks_for, "candidates": 12, "depth": 2}
    graded = vector_planner(model, position, **settings)
    blind = vector_planner(model, **settings)
    played = {
        name: evaluate_policy(lambda: world, policy, seeds=range(12), split=Split.TEST, num_envs=1)
        for name, policy in (("graded", graded), ("random", Random.Config().build()))
    }
    assert np.mean(played["graded"].successes) == 1.0 > 0.2 > np.mean(played["random"].successes)
    # Two steps ahead there is no reward to see: all sequences are equal.
    world.reset(seed=0)
    assert not blind.scores(at(world.point), np.ones((3, 2, 1))).any()


def test_a_forked_world_predicts_what_then_happens_and_counts_its_steps():
    world = Track.Config().build()
    model = ForkedWorld(world)
    run = EpisodeRun(world, seed=0, split=Split.TEST)
    for action in ("1.0", "-0.5", "1.0"):
        first = Query(run.situation, action)
        ((near,),) = (d.predictions for d in model.predict([first]))
        ((far,),) = (d.predictions for d in model.predict([Query(first.after(near), "0.5")]))
        assert far.observation.value[0] == pytest.approx(near.observation.value[0] + 0.125)
        assert run.advance(action).next_observation == near.observation
    assert model.steps == 6  # and none of them is taken in the world itself
    assert world.steps == 3


def test_a_forked_world_refuses_questions_about_other_episodes():
    world = Track.Config().build()
    model = ForkedWorld(world)
    world.reset(seed=0)
    with pytest.raises(ConfigError, match="another episode"):
        model.predict([Query(at(0.77), "1.0")])


def test_what_cannot_be_read_is_as_bad_as_the_worst():
    class Torn(Ball):
        def predict(self, queries):
            return [
                PredictiveDistribution((), (), 1) if float(q.action) > 0 else each
                for q, each in zip(queries, super().predict(queries), strict=True)
            ]

        def move(self, query):
            observation = State.of([query.situation.observation.value[0] + float(query.action)])
            return certain(observation, 0.0, False, False)

    planner = vector_planner(Torn(), position, size=1, depth=1)
    scores = planner.scores(at(0.0), np.array([[[1.0]], [[-0.2]], [[-0.9]]]))
    assert scores.tolist() == [-0.9, -0.2, -0.9]
    nothing = planner.scores(at(0.0), np.array([[[1.0]], [[0.5]]]))
    assert nothing.tolist() == [0.0, 0.0]


def test_settings_of_a_search_that_looks_at_nothing_are_refused():
    for setting in ({"depth": 0}, {"candidates": 1}, {"elite_share": 0.0}, {"temperature": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            ContinuousPlanner.Config(size=1, **setting)
