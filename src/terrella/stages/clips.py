"""Clips: stretches of filmed episodes, as rows to fit and as questions to verify. Clip i is a pure function of i.

A clip begins anywhere in an episode; its prompt is the episode's first frame, the frame it begins with and what was
done then. The steps after it are predicted one upon the other, their actions forced.
    tasks = ClipTasks(episodes, horizon=7, seed=0); rows = ClipRows(episodes, codec, horizon=7, count=10_000, seed=0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from terrella.codecs.frames import FrameCodec
from terrella.core.errors import ConfigError
from terrella.core.instances import TASK_STREAM, stream
from terrella.core.protocols import Task
from terrella.core.types import Episode, Frames, Situation, Transition
from terrella.engines.trl.packs import TrainingRow

ROW_STREAM = 2**40
"""Keeps the rows that are fitted apart, by number, from the questions of RLVR."""


def remember(codec: FrameCodec, episodes: Sequence[Episode]) -> None:
    """Write all frames of all episodes once, film by film."""
    for episode in episodes:
        seen = [episode.first, *(step.next_observation for step in episode.transitions)]
        codec.remember([frame for frame in seen if isinstance(frame, Frames)])


def actions_of(episodes: Sequence[Episode]) -> np.ndarray:
    """Every action that was taken, as numbers [N, A]."""
    return np.array([[float(x) for x in step.action.split()] for episode in episodes for step in episode.transitions])


def situation_at(episode: Episode, place: int) -> Situation:
    """Where an episode stood before a step."""
    return Situation(
        instruction="", observation=episode.transitions[place].observation, actions=(),
        history=episode.transitions[:place], steps_left=len(episode.transitions) - place,
    )  # fmt: skip


@dataclass(frozen=True)
class ClipTasks:
    """What comes after this frame, and then, and then? Only episodes that last long enough are asked about."""

    episodes: Sequence[Episode]
    horizon: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Keep the long ones."""
        long = [episode for episode in self.episodes if len(episode.transitions) >= self.horizon]
        if not long:
            raise ConfigError("horizon", f"no episode has {self.horizon} steps")
        object.__setattr__(self, "episodes", long)

    def __call__(self, index: int) -> Task:
        """The clip of this number."""
        rng = stream(TASK_STREAM, self.seed, index)
        episode = self.episodes[int(rng.integers(len(self.episodes)))]
        start = int(rng.integers(len(episode.transitions) - self.horizon + 1))
        return clip_task(episode, start, self.horizon, index)

    def in_turn(self, count: int) -> list[Task]:
        """One clip of each episode in turn, from its middle: for held-out figures no episode should weigh more."""
        chosen = [self.episodes[number % len(self.episodes)] for number in range(count)]
        return [clip_task(e, (len(e.transitions) - self.horizon) // 2, self.horizon, i) for i, e in enumerate(chosen)]


def clip_task(episode: Episode, start: int, horizon: int, number: int) -> Task:
    """The steps of an episode from `start` on, as a question."""
    steps = episode.transitions[start : start + horizon]
    return Task(
        seed=number, split=episode.split, situation=situation_at(episode, start), transition=steps[0],
        following=tuple(steps[1:]),
    )  # fmt: skip


def with_actions_of(task: Task, other: Task) -> Task:
    """The same frames asked for after the actions of another clip: a model that listens gets it wrong."""
    assert task.transition is not None and other.transition is not None
    steps = [task.transition, *task.following]
    actions = [step.action for step in (other.transition, *other.following)]
    first, *rest = [replace(step, action=action) for step, action in zip(steps, actions, strict=True)]
    return replace(task, transition=first, following=tuple(rest))


class ClipRows(Sequence[TrainingRow]):
    """Clips as rows: frames are targets, the first frame and the actions are read only."""

    def __init__(self, episodes: Sequence[Episode], codec: FrameCodec, *, horizon: int, count: int, seed: int) -> None:
        """Episodes are drawn by their length, so that every step is as likely."""
        self.episodes, self.codec, self.horizon, self.rows, self.seed = episodes, codec, horizon, count, seed
        lengths = np.array([len(episode.transitions) for episode in episodes], float)
        self.edges = np.cumsum(lengths) / lengths.sum()

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> TrainingRow:  # type: ignore[override]
        rng = stream(TASK_STREAM, self.seed, ROW_STREAM + index)
        episode = self.episodes[int(np.searchsorted(self.edges, rng.random()))]
        start = int(rng.integers(len(episode.transitions)))
        return self._row(episode, episode.transitions[start : start + self.horizon], start)

    def _row(self, episode: Episode, steps: Sequence[Transition], start: int) -> TrainingRow:
        prompt = self.codec.ask_observation(situation_at(episode, start), steps[0].action)
        ids: list[int] = []
        mask: list[bool] = []
        for place, step in enumerate(steps):
            forced = self.codec.go_on(step.action) if place else ()
            frame = self.codec.answer_observation(step.next_observation, episode.first)
            ids += [*forced, *frame]
            mask += [False] * len(forced) + [True] * len(frame)
        return TrainingRow(prompt_ids=prompt, completion_ids=tuple(ids), mask=tuple(mask))
