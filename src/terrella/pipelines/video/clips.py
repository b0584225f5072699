"""Clips of recorded episodes, as examples to fit and as tasks to verify.

Clip i is a pure function of i. A clip begins anywhere in an episode. Its prompt is the episode's
first frame, the frame that the clip begins with and the action taken there. Each following step is
predicted upon the one before, with its action forced.
    tasks = ClipTasks(episodes, horizon=7, seed=0)
    examples = ClipExamples(episodes, codec, horizon=7, count=10_000, seed=0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from terrella.codecs.frames import FrameCodec
from terrella.core.errors import ConfigError
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.tokens import Task, TrainExample
from terrella.core.types import Episode, Frames, Situation, Transition

EXAMPLES_FIRST = 2**40
"""Keeps the examples that are fitted apart, by number, from the tasks of RLVR."""


def cache_frames(codec: FrameCodec, episodes: Sequence[Episode]) -> None:
    """Encode all frames of all episodes, one video at a time."""
    for episode in episodes:
        video = [episode.first, *(step.next_observation for step in episode.transitions)]
        codec.cache_frames([frame for frame in video if isinstance(frame, Frames)])


def actions_of(episodes: Sequence[Episode]) -> np.ndarray:
    """Every action that was taken, as numbers [N, A]."""
    actions = [step.action for episode in episodes for step in episode.transitions]
    return np.array([[float(number) for number in action.split()] for action in actions])


def situation_at(episode: Episode, index: int) -> Situation:
    """The situation of an episode before a step."""
    return Situation(
        instruction="",
        observation=episode.transitions[index].observation,
        actions=(),
        history=episode.transitions[:index],
        steps_left=len(episode.transitions) - index,
    )


@dataclass(frozen=True)
class ClipTasks:
    """Predict the next `horizon` frames; clips come from episodes that are long enough."""

    episodes: Sequence[Episode]
    horizon: int
    seed: int = 0

    def __post_init__(self) -> None:
        long = [episode for episode in self.episodes if len(episode.transitions) >= self.horizon]
        if not long:
            raise ConfigError("horizon", f"no episode has {self.horizon} steps")
        object.__setattr__(self, "episodes", long)

    def __call__(self, index: int) -> Task:
        rng = stream(TASK_STREAM, self.seed, index)
        episode = self.episodes[int(rng.integers(len(self.episodes)))]
        start = int(rng.integers(len(episode.transitions) - self.horizon + 1))
        return clip_task(episode, start, self.horizon, index)

    def in_turn(self, count: int) -> list[Task]:
        """Clips from the middle of each episode in turn, so that all episodes weigh the same."""
        tasks = []
        for number in range(count):
            episode = self.episodes[number % len(self.episodes)]
            start = (len(episode.transitions) - self.horizon) // 2
            tasks.append(clip_task(episode, start, self.horizon, number))
        return tasks


def clip_task(episode: Episode, start: int, horizon: int, number: int) -> Task:
    """The steps of an episode from `start` on, as a task."""
    steps = episode.transitions[start : start + horizon]
    return Task(
        seed=number,
        split=episode.split,
        situation=situation_at(episode, start),
        transition=steps[0],
        following=tuple(steps[1:]),
    )


def with_actions_of(task: Task, other: Task) -> Task:
    """The task with the actions of another clip; a model that uses the actions gets it wrong."""
    assert task.transition is not None and other.transition is not None
    steps = [task.transition, *task.following]
    actions = [step.action for step in (other.transition, *other.following)]
    first, *rest = [
        replace(step, action=action) for step, action in zip(steps, actions, strict=True)
    ]
    return replace(task, transition=first, following=tuple(rest))


class ClipExamples(Sequence[TrainExample]):
    """Clips to fit: frames are targets; the first frame and the actions are only read."""

    def __init__(
        self, episodes: Sequence[Episode], codec: FrameCodec, *, horizon: int, count: int, seed: int
    ) -> None:
        """Episodes are drawn in proportion to their length: every step is equally likely."""
        self.episodes = episodes
        self.codec = codec
        self.horizon = horizon
        self._length = count
        self.seed = seed
        lengths = np.array([len(episode.transitions) for episode in episodes], float)
        self.edges = np.cumsum(lengths) / lengths.sum()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> TrainExample:  # type: ignore[override]
        if not 0 <= index < self._length:
            raise IndexError(index)  # clips are drawn, so any number would give one
        rng = stream(TASK_STREAM, self.seed, EXAMPLES_FIRST + index)
        episode = self.episodes[int(np.searchsorted(self.edges, rng.random()))]
        start = int(rng.integers(len(episode.transitions)))
        return self._example(episode, episode.transitions[start : start + self.horizon], start)

    def _example(self, episode: Episode, steps: Sequence[Transition], start: int) -> TrainExample:
        prompt = self.codec.ask_observation(situation_at(episode, start), steps[0].action)
        ids: list[int] = []
        mask: list[bool] = []
        for index, step in enumerate(steps):
            forced = self.codec.go_on(step.action) if index else ()
            frame = self.codec.answer_observation(step.next_observation, episode.first)
            ids += [*forced, *frame]
            mask += [False] * len(forced) + [True] * len(frame)
        return TrainExample(prompt_ids=prompt, completion_ids=tuple(ids), mask=tuple(mask))
