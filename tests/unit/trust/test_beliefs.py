"""Beliefs and their overlap with the truth; the distance to the data."""

import math

import numpy as np
import pytest
from tests.support.made_models import Lying, by_chance, data_of

from terrella.core.types import Frames, Prediction, Situation, Text, Transition, Verdict
from terrella.trust.beliefs import Belief, Question, certain, held_of, overlap
from terrella.trust.nearness import NearestData
from terrella.trust.truth import NearestCopy, NoChange, TrueModel
from terrella.worlds.counter import Count, Counter
from terrella.worlds.frozen_lake import FrozenLake

VERIFIER = FrozenLake.verifier


def said(text, chance, reward=0.0, terminated=False):
    return Prediction(observation=Text(text), reward=reward, terminated=terminated, logprob=math.log(chance), risk=0.0)


def asked(observation, action):
    situation = Situation(instruction="", observation=observation, actions=(), history=(), steps_left=5)
    return Question(situation, action)


def test_overlap_is_one_minus_total_variation():
    truth = Belief((certain(Text("a"), 0, False, False, 0.5), certain(Text("b"), 0, False, False, 0.5)))
    assert overlap(truth, truth, Text("c"), VERIFIER) == 1.0
    sure = Belief((said("a", 1.0),))
    assert overlap(sure, truth, Text("c"), VERIFIER) == 0.5  # right half of the time is half right, not wrong
    skewed = Belief((said("a", 0.8), said("b", 0.2)))
    assert overlap(skewed, truth, Text("c"), VERIFIER) == pytest.approx(0.7)
    assert overlap(Belief(()), truth, Text("c"), VERIFIER) == 0.0


def test_a_wrong_reward_or_end_is_a_wrong_prediction():
    truth = certain(Text("a"), 1.0, True, False)
    assert held_of(Belief((said("a", 1.0, reward=1.0, terminated=True),)), truth, Text("b"), VERIFIER) == 1.0
    assert held_of(Belief((said("a", 1.0, reward=0.0, terminated=True),)), truth, Text("b"), VERIFIER) == 0.0
    assert held_of(Belief((said("a", 1.0, reward=1.0),)), truth, Text("b"), VERIFIER) == 0.0


def test_frames_get_partial_credit_from_their_verifier():
    class Half:
        def verify(self, reply, truth, before):
            return Verdict.of(0.5)

    black, grey = (Frames.of(np.full((1, 2, 2, 1), value, np.uint8)) for value in (0, 9))
    belief = Belief((certain(black, 0, False, False),))
    assert held_of(belief, certain(grey, 0, False, False), black, Half()) == 0.5
    # The same verdict on text is no match: half a grid is another state.
    assert held_of(Belief((said("a", 1.0),)), certain(Text("b"), 0, False, False), Text("c"), Half()) == 0.0


def test_a_draw_follows_the_chances_and_unsampled_mass_is_shared():
    belief = Belief((said("a", 0.6), said("b", 0.2)), counts=(3, 1))
    drawn = [belief.draw(uniform).observation.text for uniform in np.linspace(0, 0.999, 100)]
    assert drawn.count("a") == 75 and belief.missing == pytest.approx(0.2) and belief.disagreement == 0.25
    assert Belief(()).draw(0.5) is None


def test_the_truth_knows_every_slip_and_stops_at_what_is_no_state():
    world = FrozenLake.Config(size=3, success_rate=2 / 3).build()
    belief = TrueModel(world).believe([asked(Text("___\n_P_\n__G"), "Right")])[0]
    assert [round(c, 3) for c in belief.chances] == [0.667, 0.167, 0.167]
    assert TrueModel(world).believe([asked(Text("nonsense"), "Right")])[0].predictions == ()


def test_nearest_copies_what_came_of_the_most_similar_step():
    steps = [Transition(observation=Text("aaaa"), action="x", next_observation=Text("aaab"), reward=1.0),
             Transition(observation=Text("bbbb"), action="x", next_observation=Text("cccc"))]  # fmt: skip
    data = NearestData(steps)
    distances, nearest = data.look_up([(Text("aaba"), "x"), (Text("bbbb"), "x"), (Text("aaaa"), "y")])
    assert list(distances) == [0.25, 0.0, 1.0] and nearest == [steps[0], steps[1], None]
    copy = NearestCopy(data).believe([asked(Text("aaba"), "x")])[0].predictions[0]
    assert copy.observation == Text("aaab") and copy.reward == 1.0
    assert NoChange().believe([asked(Text("q"), "x")])[0].predictions[0].observation == Text("q")


def test_distance_between_frames_is_in_pixels():
    frames = [Frames.of(np.full((1, 2, 2, 1), value, np.uint8)) for value in (0, 51, 255)]
    data = NearestData([Transition(observation=frames[0], action="x", next_observation=frames[1])])
    distances, _ = data.look_up([(frames[1], "x"), (frames[2], "x")])
    assert list(distances) == pytest.approx([0.2, 1.0])


def test_a_lie_is_told_by_its_overlap():
    world = Counter.Config().build()
    world.reset(seed=0)
    questions = [asked(world.view.show(Count(value, 99)), "up") for value in range(200)]
    lying = Lying(world, by_chance(0.3))
    truth = TrueModel(world).believe(questions)
    held = [overlap(b, t, q.situation.observation, world.verifier) for b, t, q in
            zip(lying.believe(questions), truth, questions, strict=True)]  # fmt: skip
    assert set(held) == {0.0, 1.0} and 0.6 < np.mean(held) < 0.8
    assert data_of(world, 5).different > 5
