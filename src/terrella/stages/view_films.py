"""Held-out clips of a video model as a page shows them: what was filmed, and what the model made of the same actions.

Each clip is predicted frame upon frame from its first one, so the steps of a page are ever deeper in imagination.
    rows = predicted_clips(read_run(Path("runs/video")), most=60)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from terrella.codecs.frames import FrameCodec
from terrella.core.config import load
from terrella.core.errors import ConfigError
from terrella.core.protocols import Task, TokenEpisode
from terrella.core.types import Episode, Prediction, Split, Stop, Transition, Verdict
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.models.presets import load_model
from terrella.show.counterfactuals import Foretold
from terrella.show.page_data import Extras
from terrella.show.runs import Run
from terrella.stages.clips import ClipTasks
from terrella.stages.video_model import VideoModel, filmed, read_codec, written, written_frames


def predicted_clips(run: Run, most: int) -> Iterator[tuple[int, Episode, Extras]]:
    """One clip of each held-out episode in turn, with its prediction beside every frame."""
    config = load(run.config)
    assert isinstance(config, VideoModel.Config)
    films = config.films.out
    if not films.exists():
        raise ConfigError(str(films), "the films of this model are not here", "call this where it was trained")
    codec = read_codec(films, window=config.window)
    tasks = ClipTasks(filmed(config, Split.TEST), config.horizon).in_turn(min(most, config.evaluate_on))
    sampler = LocalSampler(load_model(str(run.folder / "model"))[0].eval())
    played = VideoModel(config).driver(codec).run(sampler, tasks, group_size=1, seed=config.seed + 1)
    for number, (task, episode) in enumerate(zip(tasks, played, strict=True)):
        extras = Extras(foretold=_foretold(codec, task, episode), note="held-out clip")
        yield number, _clip(run, task, episode.outcome), extras


def _clip(run: Run, task: Task, outcome: Verdict) -> Episode:
    steps = _steps(task)
    return Episode(
        world=run.name, instance="", split=task.split, seed=task.seed, noise_seed=0, policy="as filmed",
        first=steps[0].observation, transitions=steps, stop=Stop.OUT_OF_STEPS, outcome=outcome,
    )  # fmt: skip


def _steps(task: Task) -> tuple[Transition, ...]:
    assert task.transition is not None
    return (task.transition, *task.following)


def _foretold(codec: FrameCodec, task: Task, episode: TokenEpisode) -> list[Foretold]:
    """The risk of a frame is what the model gave to other ids, on (geometric) average over its own."""
    assert task.situation is not None
    said = []
    frames = codec.read_rollout(task.situation, written_frames(episode))
    rows = zip(_steps(task), frames, episode.turn_rewards, written(episode, episode.logprobs), strict=True)
    for step, frame, score, logprobs in rows:
        if frame is None:
            said.append(Foretold(None, 1.0, "", Verdict.unparsable("not a frame's ids")))
            continue
        risk = 1.0 - math.exp(sum(logprobs) / len(logprobs))
        told = Prediction(
            observation=frame, reward=step.reward, terminated=step.terminated, logprob=sum(logprobs), risk=risk
        )
        said.append(Foretold(told, risk, "", Verdict.of(score)))
    return said
