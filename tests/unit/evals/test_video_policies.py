"""The success classifier of imagined frames."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.core.errors import ConfigError
from terrella.core.types import Frames
from terrella.evals import video_policies
from terrella.evals.video_policies import EvaluatePolicies
from terrella.evals.video_success import PixelExample, fit_progress, fit_success, frame_value
from terrella.worlds.counter import Counter


class Exact:
    """A tokenizer that loses nothing."""

    def write(self, video, context):
        return None, video

    def read(self, context, ids):
        return ids


def noise_examples(count, *, seed):
    """Videos of noise.

    Every third succeeds and ends with a bright corner; every fifth shows a dimmer one.
    """
    rng = np.random.default_rng(seed)
    examples = []
    for number in range(count):
        video, success = rng.integers(0, 60, (12, 16, 16, 3)).astype(np.uint8), np.zeros(12, bool)
        if number % 3 == 0:
            video[-1, :8, :8], success[-1] = 250, True
        elif number % 5 == 0:
            video[6, :8, :8] = 110
        examples.append(PixelExample(video, np.zeros((11, 2)), success))
    return examples


def test_as_many_episodes_are_classified_as_successes_as_succeed():
    net, threshold = fit_success(noise_examples(120, seed=0), Exact(), steps=150, seed=0)
    fresh = noise_examples(60, seed=1)
    detected = [bool((net.read(example.video)[:, 0] > threshold).any()) for example in fresh]
    succeeded = [bool(example.success.any()) for example in fresh]
    assert abs(np.mean(detected) - np.mean(succeeded)) <= 0.1
    assert np.mean(np.array(detected) == np.array(succeeded)) >= 0.9


def test_a_world_that_nobody_wins_is_refused_before_anything_is_trained(monkeypatch):
    lost = PixelExample(np.zeros((4, 8, 8, 3), np.uint8), np.zeros((3, 2)), np.zeros(4, bool))
    monkeypatch.setattr(video_policies, "play_example", lambda *_, **__: lost)
    monkeypatch.setattr(video_policies, "read_codec", lambda *_, **__: None)
    evaluation = EvaluatePolicies(EvaluatePolicies.Config(world=Counter.Config()))
    with pytest.raises(ConfigError, match="none of 360 training episodes"):
        evaluation.run()
    blind = type("Net", (), {"read": lambda self, video: np.zeros((len(video), 1))})()
    error = evaluation._classifier_error(blind, 0.5, Exact())
    assert error["missed"] is None and error["false"] == 0.0


def test_the_classifier_is_shown_random_play_and_its_error_is_given_for_each_kind(monkeypatch):
    """A classifier that never saw aimless frames calls many of them successes."""
    shown = []

    def play(world, policy, *, seed, split):
        shown.append(policy.name)
        won = np.array([False, policy.name.endswith(",0)")])
        return PixelExample(np.zeros((2, 8, 8, 3), np.uint8), np.zeros((1, 2)), won)

    monkeypatch.setattr(video_policies, "play_example", play)
    evaluation = EvaluatePolicies(EvaluatePolicies.Config(world=Counter.Config(), train_episodes=9))
    evaluation._examples()
    assert len(set(shown)) == 3 and all(shown.count(name) == 3 for name in shown)
    always = type("Net", (), {"read": lambda self, video: np.ones((len(video), 1))})()
    by_share = evaluation._classifier_error(always, 0.5, Exact())["by_random_share"]
    assert {share: row["episodes_seen_to_win"] for share, row in by_share.items()} == {
        "0": 1.0,
        "0.4": 1.0,
        "1": 1.0,
    }


def test_progress_grades_frames_by_how_near_success_is():
    """A bar that grows by two columns a step; it succeeds at sixteen."""
    video = np.zeros((9, 16, 16, 3), np.uint8)
    for step, image in enumerate(video):
        image[:, : 2 * step] = 250
    won = np.arange(9) == 8
    example = PixelExample(video, np.zeros((8, 2)), won)
    value = frame_value(fit_progress([example] * 4, Exact(), steps=150, seed=0))
    values = value([Frames.of(image[None]) for image in video])
    assert (np.diff(values) > 0).all() and abs(values[-1] - 1.0) < 0.2
    lost = PixelExample(video, np.zeros((8, 2)), np.zeros(9, bool))
    nothing = frame_value(fit_progress([lost] * 4, Exact(), steps=60, seed=0))
    assert np.abs(nothing([Frames.of(video[8][None])])).max() < 0.2
