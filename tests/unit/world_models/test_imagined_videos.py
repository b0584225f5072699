"""A video world model as a Gymnasium environment: pixel policies play in imagined frames."""

import asyncio
import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("mujoco") is None:
    pytest.skip("pip install 'terrella[video]'", allow_module_level=True)

from terrella.codecs.frames import FrameCodec
from terrella.core.errors import PolicyError
from terrella.core.predictive import Query
from terrella.core.types import Frames, Moment, Situation, Split, Text
from terrella.engines.local.local_sampler import LocalSampler
from terrella.evals.policy_eval import evaluate_policy
from terrella.evals.video_success import play_example, recorded_example
from terrella.models.action_bins import ActionBins
from terrella.models.configs import FrameTokenizerConfig
from terrella.models.frame_tokenizer import FrameTokenizer
from terrella.models.video_lm import make_video_lm
from terrella.policies.basic import Expert, Mixture
from terrella.policies.pixels import Pixels
from terrella.show.videos import side_by_side, video_strip
from terrella.world_models import video
from terrella.world_models.video import VideoWorldModel, imagined_video_world
from terrella.worlds.tabletop import Tabletop

WORLD = Tabletop.Config(task="reach", size=16, max_steps=5)


def make_model(succeeded):
    tokenizer = FrameTokenizer(FrameTokenizerConfig(size=16, stride=8, width=8)).eval()
    codec = FrameCodec(
        tokenizer, ActionBins.fit(np.random.default_rng(0).uniform(-1, 1, (100, 2)), 8), window=2
    )
    net, *_ = make_video_lm(codec.vocabulary, width=32, layers=1, heads=2, positions=256, seed=0)
    return VideoWorldModel(LocalSampler(net.eval()), codec, succeeded)


def right(frames):
    return np.tile([1.0, 0.0], (len(frames), 1))


def test_a_policy_on_pixels_plays_in_imagination_until_success_is_seen():
    model = make_model(lambda frames: np.zeros(len(frames), bool))
    result = evaluate_policy(
        lambda: imagined_video_world(WORLD, model),
        Pixels(right, "right"),
        seeds=range(3),
        split=Split.TEST,
    )
    assert result.successes == [0.0] * 3 and result.steps == 15
    real = WORLD.build().reset(seed=0, options={"split": Split.TEST})[0]
    assert result.episodes[0].first == real  # initial states are real, and held out
    assert all(
        step.action == "+1.00 +0.00" for episode in result.episodes for step in episode.transitions
    )

    eager = make_model(lambda frames: np.ones(len(frames), bool))
    result = evaluate_policy(
        lambda: imagined_video_world(WORLD, eager),
        Pixels(right, "right"),
        seeds=range(2),
        split=Split.TEST,
    )
    assert result.successes == [1.0, 1.0] and result.steps == 2


def test_an_imagined_world_can_be_stepped_inside_an_event_loop():
    world = imagined_video_world(WORLD, make_model(lambda frames: np.zeros(len(frames), bool)))

    async def play():
        world.reset(seed=0)
        return world.step("+1.00 +0.00")

    observation, *_ = asyncio.run(play())
    assert observation.array.shape[-3:] == (16, 16, 3)


def test_the_same_start_is_imagined_the_same_way():
    runs = [
        evaluate_policy(
            lambda: imagined_video_world(WORLD, make_model(lambda f: np.zeros(len(f), bool))),
            Pixels(right, "right"),
            seeds=[4],
            split=Split.TEST,
        ).episodes[0]
        for _ in range(2)
    ]
    assert [s.next_observation for s in runs[0].transitions] == [
        s.next_observation for s in runs[1].transitions
    ]


def test_imagined_frames_that_are_kept_have_a_bounded_size(monkeypatch):
    model = make_model(lambda frames: np.zeros(len(frames), bool))
    frame = Frames.of(np.full((1, 16, 16, 3), 90, np.uint8))
    queries = [Query(at(frame), f"{number / 8:+.2f} +0.00") for number in range(-8, 8)]
    monkeypatch.setattr(video, "CACHE_BYTES", 3 * 16 * 16 * 3)

    def imagined():  # not log-probabilities: their last bits depend on what else was sampled
        return [model.predict([query])[0].predictions[0].observation for query in queries]

    first = imagined()
    assert len(set(map(model._key, queries))) > 5 > len(model.cache)
    assert imagined() == first


def test_episodes_with_the_same_ids_and_other_pixels_do_not_share_a_frame():
    """Frames are decoded upon the pixels of the first one; ids say less than pixels."""
    model = make_model(lambda frames: np.zeros(len(frames), bool))
    dark, bright = (Frames.of(np.full((1, 16, 16, 3), grey, np.uint8)) for grey in (40, 200))
    codec = model.codec
    for frame in (dark, bright):  # a tokenizer with few codes sees no difference
        codec.cache_frames([frame])
        about = codec.context_digest(at(frame))
        codec._contexts[about] = np.full(codec.context_tokens, codec.first_context)
        codec._frames[about + about] = np.full(codec.frame_tokens, codec.first_frame)
    queries = [Query(at(frame), "+1.00 +0.00") for frame in (dark, bright, dark)]
    assert codec.ask_observation(at(dark), "0 0") == codec.ask_observation(at(bright), "0 0")
    frames = [
        each.predictions[0].observation
        for batch in (queries, queries)
        for each in model.predict(batch)
    ]
    assert frames[0] == frames[2] == frames[3] and frames[1] == frames[4]
    assert frames[1].array.mean() - frames[0].array.mean() > 80
    # Each frame has the ids that were generated for it, in its own episode.
    drawn = {
        codec.frame_ids(frame, first) for frame, first in ((frames[0], dark), (frames[1], bright))
    }
    assert len(drawn) == 1


def at(frame):
    """The beginning of an episode."""
    return Situation(instruction="", observation=frame, actions=(), history=(), steps_left=5)


def test_a_share_of_random_steps_and_other_observations():
    world = WORLD.build()
    policy = Pixels(right, "noisy", share=1.0)
    episode = evaluate_policy(lambda: world, policy, seeds=[0], split=Split.TRAIN).episodes[0]
    assert len({step.action for step in episode.transitions}) > 1
    blind = Moment(
        instruction="",
        observation=Text("x"),
        actions=(),
        history=(),
        steps_left=1,
        proposals=tuple,
        rng=np.random.default_rng(0),
        expert=str,
    )
    with pytest.raises(PolicyError, match="not frames"):
        policy.act(blind)


def test_an_example_has_the_experts_action_for_every_frame():
    world = WORLD.build()
    example = play_example(world, Expert.Config().build(), seed=3, split=Split.TRAIN)
    assert len(example.video) == len(example.actions) + 1 == len(example.success)
    assert example.success[-1]
    noisy = play_example(world, Mixture.Config(share=1.0).build(), seed=3, split=Split.TRAIN)
    # Labels are the expert's actions, whoever acts.
    assert np.array_equal(noisy.actions[0], example.actions[0])


def test_a_recording_is_an_example_of_the_actions_that_were_taken():
    played = evaluate_policy(
        WORLD.build, Mixture.Config(share=0.5).build(), seeds=range(12), split=Split.TRAIN
    )
    for episode in played.episodes:
        example = recorded_example(episode)
        assert len(example.video) == len(example.actions) + 1 == len(example.success)
        taken = [[float(x) for x in step.action.split()] for step in episode.transitions]
        assert example.actions.tolist() == taken
        assert example.success.tolist() == [False] * len(taken) + [episode.success]
    assert {episode.success for episode in played.episodes} == {True, False}


def test_noise_disturbs_the_actions_within_their_bounds():
    noisy = Pixels(right, "noisy", noise=0.5)
    episode = evaluate_policy(WORLD.build, noisy, seeds=[0], split=Split.TRAIN).episodes[0]
    actions = np.array([step.action.split() for step in episode.transitions], float)
    assert np.abs(actions).max() <= 1.0 and len(np.unique(actions[:, 1])) == len(actions)


def test_video_strips_and_videos_side_by_side():
    video = np.random.default_rng(0).integers(0, 255, (3, 16, 16, 3), np.uint8)
    assert video_strip(video[0], video, video).shape == (3 * 34 + 4, 4 * 34, 3)
    pair = side_by_side(video[0], video, video)
    assert pair.shape == (4, 34, 3 * 34, 3) and (pair[1][2:, 2 * 34 : -2] == 255).all()


def test_a_frame_is_drawn_from_the_models_seed_and_the_whole_prompt():
    model = make_model(lambda frames: np.zeros(len(frames), bool))
    prompts, seeds = [(1, 2, 3), (1, 2, 4), (3, 2, 1), (1, 2, 3, 0)], [0, 1, -1, -2]
    drawn = set()
    for model.seed in seeds:
        drawn |= {model._request(prompt).seed for prompt in prompts}
    assert len(drawn) == len(prompts) * len(seeds) and all(0 <= seed < 2**62 for seed in drawn)
    model.seed = 0
    # The same on every machine and in every process.
    assert model._request((1, 2, 3)).seed == 1907026243960671418
