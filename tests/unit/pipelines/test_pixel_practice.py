"""A policy on pixels practises in a world: it gets better by its own successes alone."""

from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.core.config import ConfigError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.types import Frames, Prediction, Split
from terrella.core.world import Step, World
from terrella.engines.frames.pixel_trainer import clone, refine
from terrella.evals.policy_eval import evaluate_policy
from terrella.models.pixel_nets import PixelNet
from terrella.pipelines.video.practice import PixelPractice
from terrella.policies.basic import Random
from terrella.policies.pixels import Pixels
from terrella.verify.frames import FrameDistance
from terrella.world_models.risk_stop import RiskStop, risk_limit
from terrella.world_models.video import imagined_video_world

SIZE = 16


class Slide(World):
    """A bright square in a strip; it must come to the right end. The hidden rule: right is +1."""

    rules = "Go right."

    @dataclass(frozen=True, kw_only=True)
    class Config(World.Config):
        max_steps: int = 6

    def __init__(self, config):
        super().__init__(config)
        self.verifier = FrameDistance.Config().build()
        self.observation_space = self.action_space = None

    def _start(self, rng):
        self.place = int(rng.integers(0, 400)) / 100
        return self.place

    def _observe(self):
        return picture(self.place)

    def _act(self, action):
        self.place = round(float(np.clip(self.place + 3.0 * float(action), 0.0, 12.0)), 2)
        return Step(float(self.place >= 11), self.place >= 11, self.place >= 11, True, True)

    def actions(self):
        return ()

    def proposals(self, state):
        return ("-1.00", "+0.00", "+1.00")


def picture(place):
    image = np.zeros((1, SIZE, SIZE, 3), np.uint8)
    image[:, :, int(place) : int(place) + 4] = 250
    return Frames.of(image)


def start():
    """A policy that barely moves."""
    frames = np.concatenate([picture(place).array for place in np.arange(0, 12, 0.5)])
    return clone(frames, np.full((len(frames), 1), 0.2), ages=(60,), seed=0)[60]


def success(net):
    played = evaluate_policy(
        Slide.Config().build, Pixels(net.read, "p"), seeds=range(20), split=Split.TEST
    )
    return np.mean(played.successes)


def test_a_policy_that_practises_succeeds_more_often():
    net = start()
    practice = PixelPractice(PixelPractice.Config(rounds=3, episodes=40, noise=0.6, updates=60))
    practised = practice.run(net, Slide.Config().build, seed=0)
    assert success(net) < 0.3 and success(practised.net) > success(net) + 0.5
    assert practised.rounds[-1].successes > practised.rounds[0].successes
    assert practised.steps == sum(each.steps for each in practised.rounds) <= 3 * 40 * 6
    assert all(each.unreadable == 0 and each.episodes == 40 for each in practised.rounds)


def test_practice_without_a_success_changes_nothing():
    net = start()
    before = net.read(picture(3).array)
    practice = PixelPractice(PixelPractice.Config(rounds=1, episodes=4, noise=1e-3))
    practised = practice.run(net, Slide.Config().build, seed=0)
    assert practised.rounds[0].successes == 0
    assert (practised.net.read(picture(3).array) == before).all()
    with pytest.raises(ConfigError, match="noise"):
        PixelPractice.Config(noise=0.0)


def test_a_refined_policy_is_a_copy():
    net = PixelNet(SIZE, 1)
    frames = picture(3).array
    before = net.read(frames)
    after = refine(net, frames, np.array([[0.9]]), updates=40, seed=0)
    assert (net.read(frames) == before).all()
    assert abs(after.read(frames)[0, 0] - 0.9) < 0.2


class Unsure:
    """Knows the world, and is less sure the further right the square is."""

    def __init__(self):
        self.queries = []

    def predict(self, queries):
        self.queries += queries
        return [PredictiveDistribution((self.step(query),)) for query in queries]

    @staticmethod
    def step(query):
        columns = query.situation.observation.array[0, 0, :, 0].nonzero()[0]
        place = float(np.clip(columns[0] + 3.0 * float(query.action), 0.0, 12.0))
        done = place >= 11
        return Prediction(
            observation=picture(place),
            reward=float(done),
            terminated=done,
            success=done,
            logprob=0.0,
            risk=place / 12,
        )


def test_imagination_ends_where_the_model_is_not_sure():
    stop = RiskStop(Unsure(), most=0.5)
    right = Pixels(lambda frames: np.ones((len(frames), 1)), "right")
    played = evaluate_policy(
        lambda: imagined_video_world(Slide.Config(), stop), right, seeds=range(6), split=Split.TEST
    )
    assert played.successes == [0.0] * 6
    last = [episode.transitions[-1] for episode in played.episodes]
    assert all(step.info["unreadable"] and step.terminated for step in last)
    assert all(len(episode.transitions) < 4 for episode in played.episodes)

    free = RiskStop(Unsure(), most=1.0)
    played = evaluate_policy(
        lambda: imagined_video_world(Slide.Config(), free), right, seeds=range(6), split=Split.TEST
    )
    assert played.successes == [1.0] * 6

    practice = PixelPractice(PixelPractice.Config(rounds=1, episodes=8, noise=0.6))
    practised = practice.run(
        PixelNet(SIZE, 1),
        lambda: imagined_video_world(Slide.Config(), RiskStop(Unsure(), 0.0)),
        seed=0,
    )
    (row,) = practised.rounds
    assert row.unreadable > 0 and row.successes == 0


def test_the_limit_is_the_risk_that_a_share_of_held_out_steps_stays_within():
    episodes = evaluate_policy(
        Slide.Config().build, Random.Config().build(), seeds=range(10), split=Split.TEST
    ).episodes
    model = Unsure()
    most = risk_limit(model, episodes, max_steps=6, share=0.5)
    steps = sum(len(episode.transitions) for episode in episodes)
    assert len(model.queries) == steps
    risks = [model.step(query).risk for query in model.queries]
    assert np.mean(np.array(risks) <= most) >= 0.5 and most in risks
    assert risk_limit(model, episodes, max_steps=6, share=1.0) == max(risks)
    # The model sees the real frames before each step.
    assert isinstance(model.queries[1], Query) and len(model.queries[1].situation.history) == 1
    with pytest.raises(ConfigError, match="no step"):
        risk_limit(model, [], max_steps=6, share=0.5)
