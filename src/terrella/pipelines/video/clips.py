"""Clips of recorded episodes, as examples to fit and as tasks to verify.

Clip i is a pure function of i. A clip begins anywhere in an episode. Its prompt is the episode's
first frame, the frame that the clip begins with and the action taken there. Each following step is
predicted upon the one before, with its action forced.
    tasks = ClipTasks(shards, horizon=7, seed=0)
    examples = ClipExamples(shards, codec, horizon=7, count=10_000, seed=0)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from terrella.codecs.frames import FrameCodec
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.tokens import Task, TrainExample
from terrella.core.types import Episode, Frames, Situation, Transition
from terrella.data.shard_draws import ShardDraws
from terrella.data.shards import Shards, StoredShards
from terrella.models.action_bins import ActionBins

MAX_ACTIONS = 200_000
"""Actions that bins are fitted to, about: whole shards are read."""
EXAMPLES_FIRST = 2**40
"""Keeps the examples that are fitted apart, by number, from the tasks of RLVR."""


def cache_clip(codec: FrameCodec, episode: Episode, start: int, end: int) -> None:
    """Encode the frames of a clip in one batch, with those before it that a prompt shows."""
    shown = episode.transitions[max(0, start - codec.window) : end]
    video = [episode.first, *(step.observation for step in shown), shown[-1].next_observation]
    codec.cache_frames([frame for frame in video if isinstance(frame, Frames)])


def fitted_bins(shards: StoredShards, bins: int, *, seed: int) -> ActionBins:
    """Bins at the quantiles of the actions that were taken, or of many of them."""
    order = stream(TASK_STREAM, seed).permutation(len(shards)).tolist()
    actions = shards.actions(MAX_ACTIONS, order)
    return ActionBins.fit(np.array([[float(x) for x in each.split()] for each in actions]), bins)


def situation_at(episode: Episode, index: int, window: int | None = None) -> Situation:
    """The situation of an episode before a step.

    With a `window`, its history is the first step and so many before this one: what a prompt shows.
    A task then holds these frames and not all of the episode.
    """
    history = episode.transitions[:index]
    if window is not None and index > window + 1:
        history = (history[0], *history[index - window :])
    return Situation(
        instruction="",
        observation=episode.transitions[index].observation,
        actions=(),
        history=history,
        steps_left=len(episode.transitions) - index,
    )


class ClipTasks:
    """Predict the next `horizon` frames; clips come from episodes that are long enough."""

    def __init__(
        self, shards: Shards, horizon: int, *, seed: int = 0, window: int = 0, count: int = 0
    ) -> None:
        """`window` is the number of frames in a prompt before the one that a clip begins with.

        `count` is about how many tasks will be drawn; 0 is as many as there are steps.
        """
        self.shards = shards
        self.horizon = horizon
        self.window = window
        draws = count or shards.transitions
        self.draws = ShardDraws(shards, least=horizon, count=draws, seed=seed)

    def __call__(self, index: int) -> Task:
        episode, start = self.draws[index]
        return clip_task(episode, start, self.horizon, index, self.window)

    def in_turn(self, count: int) -> Iterator[Task]:
        """One clip from the middle of each episode, so that all episodes weigh the same.

        There are at most `count`, and no clip comes twice: intervals are over distinct clips.
        """
        number = 0
        for episode in self.shards.episodes():
            start = (len(episode.transitions) - self.horizon) // 2
            if start < 0:
                continue
            if number == count:
                return
            yield clip_task(episode, start, self.horizon, number, self.window)
            number += 1


def clip_task(
    episode: Episode, start: int, horizon: int, number: int, window: int | None = None
) -> Task:
    """The steps of an episode from `start` on, as a task."""
    steps = episode.transitions[start : start + horizon]
    return Task(
        seed=number,
        split=episode.split,
        situation=situation_at(episode, start, window),
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
    """Clips to fit: frames are targets; the first frame and the actions are only read.

    They are drawn at random already, and are cheap only in their order: `in_order` tells a trainer
    not to shuffle them again.
    """

    in_order = True

    def __init__(  # noqa: PLR0913  what is drawn, how often, and how it is split among ranks
        self,
        shards: Shards,
        codec: FrameCodec,
        *,
        horizon: int,
        count: int,
        seed: int,
        changed_weight: float = 1.0,
        lanes: int = 1,
        batch: int = 1,
    ) -> None:
        """Every step of the data is equally likely. `lanes` and `batch` are those of the ranks.

        `changed_weight` is the weight in the loss of ids that differ from the frame before.
        """
        self.codec = codec
        self.changed_weight = changed_weight
        self.horizon = horizon
        self._length = count
        self.draws = ShardDraws(
            shards,
            least=1,
            count=count,
            seed=seed,
            first=EXAMPLES_FIRST,
            lanes=lanes,
            batch=batch,
        )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> TrainExample:  # type: ignore[override]
        if not 0 <= index < self._length:
            raise IndexError(index)  # clips are drawn, so any number would give one
        episode, start = self.draws[index]
        steps = episode.transitions[start : start + self.horizon]
        cache_clip(self.codec, episode, start, start + len(steps))
        return self._example(episode, steps, start)

    def _example(self, episode: Episode, steps: Sequence[Transition], start: int) -> TrainExample:
        situation = situation_at(episode, start, self.codec.window)
        prompt = self.codec.ask_observation(situation, steps[0].action)
        ids: list[int] = []
        mask: list[bool] = []
        weights: list[float] = []
        before = self.codec.answer_observation(steps[0].observation, episode.first)
        for index, step in enumerate(steps):
            forced = self.codec.go_on(step.action) if index else ()
            frame = self.codec.answer_observation(step.next_observation, episode.first)
            ids += [*forced, *frame]
            mask += [False] * len(forced) + [True] * len(frame)
            weights += [1.0] * len(forced)
            weights += [
                1.0 if old == new else self.changed_weight
                for old, new in zip(before, frame, strict=True)
            ]
            before = frame
        columns = {} if self.changed_weight == 1.0 else {"weight": tuple(weights)}
        return TrainExample(
            prompt_ids=prompt, completion_ids=tuple(ids), mask=tuple(mask), columns=columns
        )
