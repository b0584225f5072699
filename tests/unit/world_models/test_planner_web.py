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

    def __init__(self):
        self.calls = 0

    def propose(self, situations):
        self.calls += len(situations)
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


def agent(model=None, **fields):
    return PagePlanner(
        PagePlanner.Config(**fields),
        WrongFirst(),
        model,
        lambda nodes: ("click 2", "click 3", "stop"),
    )


def test_two_steps_ahead_see_what_one_does_not():
    assert agent(depth=0).act(moment()) == "click 3"
    assert agent(BoxModel(), depth=1).act(moment()) == "click 3"  # nothing is won within one step
    assert agent(BoxModel(), depth=2).act(moment()) == "click 2"
    assert agent(BoxModel(), depth=1).act(moment(OPEN)) == "click 2"


def test_stop_is_valued_like_any_action():
    """It is proposed but not taken, because the model predicts no reward for it."""
    assert agent(BoxModel(), depth=2, prior_weight=0.0).act(moment()) == "click 2"


def test_calls_are_counted_and_stay_within_the_budget():
    for budget in (1, 4, 6, 64):
        planner = agent(BoxModel(), depth=3, budget=budget)
        planner.act(moment())
        assert planner.cost.calls <= max(budget, 1) and planner.cost.steps == 1


def test_risk_and_replies_that_cannot_be_read_cost():
    assert agent(BoxModel(risk=1.0), depth=2, risk_weight=5.0).act(moment()) == "click 3"
    assert agent(BoxModel(unreadable=("click 2",)), depth=2).act(moment()) == "click 3"


def test_looking_ahead_needs_a_model():
    with pytest.raises(ConfigError, match="needs a model"):
        agent(depth=1)
    assert parse(OPEN)[1].get("selected")
