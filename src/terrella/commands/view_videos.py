"""Held-out clips of a video model for a page: the real video beside the predicted one.

Each clip is predicted frame by frame from its first frame with the recorded actions, so later steps
of a page are deeper in imagination.
    run = read_run(Path("runs/video"))
    for number, episode, extras in predicted_clips(run, 60, videos=None): ...
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from terrella.codecs.frames import FrameCodec
from terrella.core.tokens import Task, TokenEpisode
from terrella.core.types import Episode, Prediction, Stop, Transition, Verdict
from terrella.engines.engine import open_sampler
from terrella.pipelines.video.pipeline import VideoModel, held_out_clips
from terrella.pipelines.video.recorded import recorded_model
from terrella.pipelines.video.tokenizer import TrainTokenizer
from terrella.rollout.rollout import Rollout
from terrella.show.counterfactuals import StepPrediction
from terrella.show.page_data import Extras
from terrella.show.runs import Run
from terrella.world_models.video import generated_by_turn, generated_frames, read_codec


def predicted_clips(
    run: Run, limit: int, *, videos: Path | None, stores: Sequence[Path] = ()
) -> Iterator[tuple[int, Episode, Extras]]:
    """Yield one clip of each held-out episode in turn, with predictions of its frames."""
    config = recorded_model(run.config, run.folder, videos=videos, stores=stores)
    codec = read_codec(config.videos.out, window=config.window, joint=config.joint_vocabulary)
    held_out = held_out_clips(config, TrainTokenizer(config.videos))
    tasks = list(itertools.islice(held_out, limit))
    sampler = open_sampler(run.folder / "model", work=run.folder / "engine")
    rollout = Rollout(VideoModel(config).rollout_config(), codec)
    episodes = rollout.run(sampler, tasks, group_size=1, seed=config.seed + 1)
    for number, (task, episode) in enumerate(zip(tasks, episodes, strict=True)):
        predictions = frame_predictions(codec, task, episode)
        extras = Extras(predictions=predictions, note="held-out clip")
        yield number, _clip_episode(run, task, episode.outcome), extras


def _clip_episode(run: Run, task: Task, outcome: Verdict) -> Episode:
    steps = _steps(task)
    return Episode(
        world=run.name,
        instance="",
        split=task.split,
        seed=task.seed,
        noise_seed=0,
        policy="as recorded",
        first=steps[0].observation,
        transitions=steps,
        stop=Stop.OUT_OF_STEPS,
        outcome=outcome,
    )


def _steps(task: Task) -> tuple[Transition, ...]:
    assert task.transition is not None
    return (task.transition, *task.following)


def frame_predictions(codec: FrameCodec, task: Task, episode: TokenEpisode) -> list[StepPrediction]:
    """Return the prediction of each frame of a clip.

    The risk of a frame is 1 minus the geometric mean of the probabilities of its ids. In a masked
    clip every frame is masked: its turn rewards are placeholders, not scores.
    """
    assert task.situation is not None
    frames = codec.read_rollout(task.situation, generated_frames(episode))
    turn_logprobs = generated_by_turn(episode, episode.logprobs)
    columns = zip(_steps(task), frames, episode.turn_rewards, turn_logprobs, strict=True)
    predictions = []
    for step, frame, score, logprobs in columns:
        if frame is None:
            unreadable = Verdict.unparsable("not a frame's ids")
            predictions.append(StepPrediction(None, 1.0, "", unreadable))
            continue
        risk = 1.0 - math.exp(sum(logprobs) / len(logprobs))
        prediction = Prediction(
            observation=frame,
            reward=step.reward,
            terminated=step.terminated,
            logprob=sum(logprobs),
            risk=risk,
        )
        predictions.append(StepPrediction(prediction, risk, "", _verdict(score, episode.outcome)))
    return predictions


def _verdict(score: float, outcome: Verdict) -> Verdict:
    if outcome.masked:
        return Verdict.failed(outcome.status, outcome.evidence)
    return Verdict.of(score)
