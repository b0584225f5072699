"""Predicted clips on a viewer page: masked clips stay masked."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")
pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

import tests.support.quiet_trl  # noqa: F401  before anything imports trl

from terrella.commands.view_videos import frame_predictions
from terrella.core.tokens import Task, TokenEpisode
from terrella.core.types import Frames, Situation, Split, Status, Transition, Verdict

FRAMES = [Frames.of(np.full((1, 2, 2, 3), shade, np.uint8)) for shade in (0, 100, 200)]
STEPS = [
    Transition(observation=before, action="push", next_observation=after)
    for before, after in pairwise(FRAMES)
]
TASK = Task(
    seed=1,
    split=Split.TEST,
    situation=Situation(
        instruction="", observation=FRAMES[0], actions=(), history=(), steps_left=2
    ),
    transition=STEPS[0],
    following=(STEPS[1],),
)
EPISODE = TokenEpisode(
    prompt_ids=(0,),
    completion_ids=(1, 2),
    model_mask=(True, True),
    logprobs=(math.log(0.5), math.log(0.25)),
    turn_ends=(1, 2),
    turn_rewards=(0.75, 0.5),
    outcome=Verdict.of(0.625),
    group="1/0",
)


class RecordedFrames:
    """A codec that reads the real frames, whatever was generated."""

    def read_rollout(self, situation, generated):
        return [step.next_observation for step in STEPS]


def test_the_frames_of_a_clip_have_their_scores():
    predictions = frame_predictions(RecordedFrames(), TASK, EPISODE)
    assert [step.verdict.value for step in predictions] == [0.75, 0.5]
    assert [step.risk for step in predictions] == pytest.approx([0.5, 0.75])


def test_the_frames_of_a_masked_clip_are_masked_and_not_scored_zero():
    # A rollout writes 0.0 as the turn reward of a masked verdict.
    failed = Verdict.failed(Status.ERROR, "the verifier raised")
    masked = replace(EPISODE, turn_rewards=(0.0, 0.0), outcome=failed)
    predictions = frame_predictions(RecordedFrames(), TASK, masked)
    assert [step.verdict.value for step in predictions] == [None, None]
    assert all(step.verdict.masked for step in predictions)
    assert predictions[0].verdict.evidence == "the verifier raised"
