"""A video model behind Gymnasium's door: policies on pixels play in it, success is seen in imagined frames."""

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("mujoco") is None:
    pytest.skip("pip install 'terrella[video]'", allow_module_level=True)

from terrella.codecs.frames import FrameCodec
from terrella.core.errors import PolicyError
from terrella.core.types import Moment, Split, Text
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.models.action_bins import ActionBins
from terrella.models.frame_tokenizer import FrameTokenizer
from terrella.models.video_lm import make_video_lm
from terrella.policies.basic import Expert, Mixture
from terrella.policies.pixels import Pixels
from terrella.show.films import film_strip, side_by_side
from terrella.stages.evaluate_policies import play_lesson
from terrella.use.policy_eval import evaluate_policy
from terrella.use.video_models import VideoWorldModel, dream
from terrella.worlds.tabletop import Tabletop

WORLD = Tabletop.Config(task="reach", size=16, max_steps=5)


def make_model(succeeded):
    tokenizer = FrameTokenizer.Config(size=16, stride=8, width=8).build().eval()
    codec = FrameCodec(tokenizer, ActionBins.fit(np.random.default_rng(0).uniform(-1, 1, (100, 2)), 8), window=2)
    net = make_video_lm(codec.vocabulary, width=32, layers=1, heads=2, positions=256, seed=0)[0].eval()
    return VideoWorldModel(LocalSampler(net), codec, succeeded)


def right(frames):
    return np.tile([1.0, 0.0], (len(frames), 1))


def test_a_policy_on_pixels_plays_in_imagination_until_success_is_seen():
    model = make_model(lambda frames: np.zeros(len(frames), bool))
    played = evaluate_policy(lambda: dream(WORLD, model), Pixels(right, "right"), seeds=range(3), split=Split.TEST)
    assert played.successes == [0.0] * 3 and played.steps == 15
    real = WORLD.build().reset(seed=0, options={"split": Split.TEST})[0]
    assert played.episodes[0].first == real  # beginnings are real, and held out
    assert all(step.action == "+1.00 +0.00" for episode in played.episodes for step in episode.transitions)

    eager = make_model(lambda frames: np.ones(len(frames), bool))
    played = evaluate_policy(lambda: dream(WORLD, eager), Pixels(right, "right"), seeds=range(2), split=Split.TEST)
    assert played.successes == [1.0, 1.0] and played.steps == 2


def test_the_same_start_is_imagined_the_same_way_and_ids_are_kept():
    runs = [
        evaluate_policy(lambda: dream(WORLD, make_model(lambda f: np.zeros(len(f), bool))), Pixels(right, "right"),
                        seeds=[4], split=Split.TEST).episodes[0]
        for _ in range(2)
    ]  # fmt: skip
    assert [s.next_observation for s in runs[0].transitions] == [s.next_observation for s in runs[1].transitions]


def test_a_share_of_random_steps_and_other_observations():
    world = WORLD.build()
    policy = Pixels(right, "noisy", share=1.0)
    episode = evaluate_policy(lambda: world, policy, seeds=[0], split=Split.TRAIN).episodes[0]
    assert len({step.action for step in episode.transitions}) > 1
    blind = Moment(instruction="", observation=Text("x"), actions=(), history=(), steps_left=1, proposals=tuple,
                   rng=np.random.default_rng(0), expert=str)  # fmt: skip
    with pytest.raises(PolicyError, match="not frames"):
        policy.act(blind)


def test_a_lesson_holds_the_experts_action_for_every_frame():
    world = WORLD.build()
    lesson = play_lesson(world, Expert.Config().build(), seed=3, split=Split.TRAIN)
    assert len(lesson.film) == len(lesson.actions) + 1 == len(lesson.success) and lesson.success[-1]
    noisy = play_lesson(world, Mixture.Config(share=1.0).build(), seed=3, split=Split.TRAIN)
    assert np.array_equal(noisy.actions[0], lesson.actions[0])  # the expert is asked, whoever acts


def test_strips_and_films_side_by_side():
    film = np.random.default_rng(0).integers(0, 255, (3, 16, 16, 3), np.uint8)
    assert film_strip(film[0], film, film).shape == (3 * 34 + 4, 4 * 34, 3)
    pair = side_by_side(film[0], film, film)
    assert pair.shape == (4, 34, 3 * 34, 3) and (pair[1][2:, 2 * 34 : -2] == 255).all()
