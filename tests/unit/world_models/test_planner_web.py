"""The web agent: looks ahead in imagined pages, within its budget, and avoids risk."""

import numpy as np
import pytest

from terrella.core.errors import ConfigError
from terrella.core.predictive import PredictiveDistribution
from terrella.core.types import Moment, Prediction, Tree
from terrella.verify.tree import parse
from terrella.world_models.planner_web import PagePlanner

START = '[1] task "Open the box, then take the key."\n[2] button "Box"\n[3] button "Bin"'
OPEN = START.replace('"Box"', '"Box" selected')


class WrongFirst:
    """Proposes all actions of the page, the wrong one first."""

    def __init__(self, calls_per_page=1):
        self.calls, self.calls_per_page = 0, calls_per_page

    def propose(self, situations):
        self.calls += self.calls_per_page * len(situations)
        return [[("click 3", 0.6), ("click 2", 0.3), ("stop", 0.1)] for _ in situations]


class BoxModel:
    """A page model of a box that must be clicked twice; the bin ends the episode without reward."""

    def __init__(self, risk=0.0, unreadable=()):
        self.risk, self.unreadable = risk, unreadable

    def predict(self, queries):
        return [self.predict_one(q.situation.observation.text, q.action) for q in queries]

    def predict_one(self, page, action):
        if action in self.unreadable:
            return PredictiveDistribution((), (), 1)
        won = page == OPEN and action == "click 2"
        over = won or action in ("click 3", "stop")
        after = OPEN if action == "click 2" else page
        risk = self.risk if action == "click 2" else 0.0
        prediction = Prediction(
            observation=Tree(after),
            reward=float(won),
            terminated=over,
            logprob=0.0,
            risk=risk,
            success=won,
        )
        return PredictiveDistribution((prediction,), (1,), 0)


class OpenEnded:
    """A page model in which nothing is won and nothing ends."""

    def predict(self, queries):
        return [self.stay(query.situation.observation) for query in queries]

    def stay(self, page):
        prediction = Prediction(
            observation=page,
            reward=0.0,
            terminated=False,
            logprob=0.0,
            risk=0.0,
            success=False,
        )
        return PredictiveDistribution((prediction,), (1,), 0)


class LikesTheBox:
    """Values what follows a first click on the box; remembers the first actions it was shown."""

    def __init__(self, calls_per_page=4):
        self.calls, self.calls_per_page = 0, calls_per_page
        self.shown = set()

    def value(self, situations):
        self.calls += self.calls_per_page * len(situations)
        first = [situation.history[0].action for situation in situations]
        self.shown |= set(first)
        return [float(action == "click 2") for action in first]


def moment(page=START):
    return Moment(
        instruction="",
        observation=Tree(page),
        actions=("click 2", "click 3", "stop"),
        history=(),
        steps_left=5,
        rng=np.random.default_rng(0),
        proposals=tuple,
        expert=str,
    )


def agent(model=None, value=None, calls_per_page=1, **fields):
    return PagePlanner(
        PagePlanner.Config(**fields),
        WrongFirst(calls_per_page),
        model,
        lambda nodes: ("click 2", "click 3", "stop"),
        value,
    )


def test_two_steps_ahead_see_what_one_does_not():
    assert agent(depth=0).act(moment()) == "click 3"
    assert agent(BoxModel(), depth=1).act(moment()) == "click 3"  # nothing is won within one step
    assert agent(BoxModel(), depth=2).act(moment()) == "click 2"
    assert agent(BoxModel(), depth=1).act(moment(OPEN)) == "click 2"


def test_stop_is_valued_like_any_action():
    """It is proposed but not taken, because the model predicts no reward for it."""
    assert agent(BoxModel(), depth=2, prior_weight=0.0).act(moment()) == "click 2"


@pytest.mark.parametrize("value", [None, LikesTheBox(0), LikesTheBox(4)])
@pytest.mark.parametrize("budget", [36, 40, 64, 100, 200])
def test_calls_stay_within_the_budget_where_a_page_takes_many(budget, value):
    for depth in (1, 2, 3):
        planner = agent(OpenEnded(), value, calls_per_page=16, depth=depth, budget=budget)
        planner.act(moment())
        assert 0 < planner.cost.calls <= budget and planner.cost.steps == 1


@pytest.mark.parametrize("budget", [36, 40, 64, 100, 200, 999])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_first_action_is_valued_at_every_depth(depth, budget):
    """Where the budget ends, a branch is valued where it stands; it does not lose its value."""
    value = LikesTheBox()
    planner = agent(OpenEnded(), value, calls_per_page=16, depth=depth, budget=budget)
    assert planner.act(moment()) == "click 2"
    assert value.shown == {"click 2", "click 3", "stop"}


def test_what_the_budget_can_pay_for_is_expanded():
    """Two steps take 16 + 3 calls for the first, 16 + 4 for each page of the second."""
    calls = {}
    for budget in (38, 39, 59, 79):
        planner = agent(OpenEnded(), calls_per_page=16, depth=2, budget=budget)
        planner.act(moment())
        calls[budget] = planner.cost.calls
    assert calls == {38: 19, 39: 19 + 19, 59: 19 + 2 * 19, 79: 19 + 3 * 19}


def test_a_budget_below_one_step_of_look_ahead_is_refused():
    with pytest.raises(ConfigError, match="takes up to 36 model calls, the budget has 35"):
        agent(OpenEnded(), LikesTheBox(), calls_per_page=16, depth=1, budget=35)
    assert agent(calls_per_page=16, depth=0, budget=1).act(moment()) == "click 3"


def test_risk_and_replies_that_cannot_be_read_cost():
    assert agent(BoxModel(risk=1.0), depth=2, risk_weight=5.0).act(moment()) == "click 3"
    assert agent(BoxModel(unreadable=("click 2",)), depth=2).act(moment()) == "click 3"


def test_looking_ahead_needs_a_model():
    with pytest.raises(ConfigError, match="needs a model"):
        agent(depth=1)
    assert parse(OPEN)[1].get("selected")
