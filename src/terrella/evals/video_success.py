"""What videos show of success: examples, a classifier, and a graded value of frames.

The networks see frames as a video model draws them, so that they judge imagined frames as well as
real ones. A classifier's 0 or 1 leaves most plans equal; a planner needs a graded value.
    examples = [recorded_example(episode) for episode in videos.episodes(Split.TRAIN)]
    net, threshold = fit_success(examples, codec.tokenizer, steps=800, seed=0)
    value = frame_value(fit_progress(examples, codec.tokenizer, steps=800, seed=0))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from terrella.codecs.frames import VideoTokenizer
from terrella.core.episode import EpisodeRun
from terrella.core.protocols import Policy
from terrella.core.types import Episode, Observation, Split
from terrella.core.world import World
from terrella.data.videos import last_frame, video_of

if TYPE_CHECKING:
    from terrella.models.pixel_nets import PixelNet

FrameArray = NDArray[np.uint8]
HELD_OUT_EVERY = 5
"""Every fifth episode is held out from the classifier; they set its success threshold."""
PER_STEP = 0.9
"""What progress is worth one step earlier."""


@dataclass(frozen=True)
class PixelExample:
    """An episode as training data for policies and classifiers on frames."""

    video: FrameArray
    """T + 1 frames."""
    actions: NDArray[np.float64]
    """The action to imitate for each of the first T frames: the expert's, or the one taken."""
    success: NDArray[np.bool_]
    """Whether each frame shows success."""


def play_example(world: World, policy: Policy, *, seed: int, split: Split) -> PixelExample:
    """Play an episode with a policy and label every step with the expert's action."""
    run = EpisodeRun(world, seed=seed, split=split, policy=policy.name)
    video = [last_frame(run.first)]
    expert_actions = []
    success = [False]
    while not run.over:
        moment = run.moment
        expert_actions.append(_numbers(moment.expert()))
        step = run.advance(policy.act(moment))
        video.append(last_frame(step.next_observation))
        success.append(bool(step.info["success"]))
    return PixelExample(np.stack(video), np.array(expert_actions), np.array(success))


def recorded_example(episode: Episode) -> PixelExample:
    """A recorded episode with the actions that were taken; success shows in its last frame."""
    success = np.zeros(len(episode.transitions) + 1, bool)
    success[-1] = episode.success
    actions = [_numbers(step.action) for step in episode.transitions]
    return PixelExample(video_of(episode), np.array(actions), success)


def _numbers(action: str) -> list[float]:
    return [float(number) for number in action.split()]


def through_tokenizer(tokenizer: VideoTokenizer, video: FrameArray) -> FrameArray:
    """The video after encoding and decoding: what a model without errors would draw."""
    drawn: FrameArray = tokenizer.read(video[0], tokenizer.write(video, video[0])[1])
    return drawn


def fitted_and_held_out(
    examples: Sequence[PixelExample],
) -> tuple[list[PixelExample], list[PixelExample]]:
    """The episodes that a classifier is fitted to, and those that set its threshold."""
    fitted = [example for n, example in enumerate(examples) if n % HELD_OUT_EVERY]
    return fitted, list(examples[::HELD_OUT_EVERY])


def fit_success(
    examples: Sequence[PixelExample], tokenizer: VideoTokenizer, *, steps: int, seed: int
) -> tuple[PixelNet, float]:
    """Fit a success classifier on frames as the model draws them, and set its threshold.

    A single false positive ends an episode, so the threshold is set by episodes and not by
    frames: among the held-out episodes, as many reach it as truly succeeded. A threshold set by
    frames lets bad policies win through a few false positives.
    """
    from terrella.engines.frames.pixel_trainer import fit_classifier

    fitted, held_out = fitted_and_held_out(examples)
    net = fit_classifier(
        np.concatenate([through_tokenizer(tokenizer, example.video) for example in fitted]),
        np.concatenate([example.success for example in fitted]),
        steps=steps,
        seed=seed,
    )
    drawn = [through_tokenizer(tokenizer, example.video) for example in held_out]
    best_scores = [net.read(video)[:, 0].max() for video in drawn]
    success_rate = float(np.mean([example.success.any() for example in held_out]))
    return net, float(np.quantile(best_scores, 1.0 - success_rate))


def fit_progress(
    examples: Sequence[PixelExample], tokenizer: VideoTokenizer, *, steps: int, seed: int
) -> PixelNet:
    """Fit how near success is: 1 where a frame shows it, less with each step before it.

    It is the value of the policies that were recorded, by regression; 0 where they never succeed.
    """
    from terrella.engines.frames.pixel_trainer import clone

    frames = np.concatenate([through_tokenizer(tokenizer, each.video) for each in examples])
    worth = np.concatenate([_worth(example.success) for example in examples])
    return clone(frames, worth[:, None], ages=(steps,), seed=seed)[steps]


def _worth(success: NDArray[np.bool_]) -> NDArray[np.float64]:
    """`PER_STEP` to the power of the steps that are left until success."""
    if not success.any():
        return np.zeros(len(success))
    left = int(success.argmax()) - np.arange(len(success))
    return np.where(left >= 0, PER_STEP ** np.abs(left), 0.0)


def frame_value(net: PixelNet) -> Callable[[Sequence[Observation]], NDArray[np.float64]]:
    """A network's first output for the last frame of observations, as planners ask for it."""

    def value(observations: Sequence[Observation]) -> NDArray[np.float64]:
        return net.read(np.stack([last_frame(each) for each in observations]))[:, 0]

    return value
