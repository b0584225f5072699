"""Recordings from robot datasets as episodes: a video, actions, and success where it is known.

The instance is the dataset and the number of the recording, so that splits are disjoint and the
same everywhere.
    recorded_episode(Recording(source="lerobot/pusht", number=3, video=video, actions=actions))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import StoreError
from terrella.core.instances import instance_id, split_of
from terrella.core.types import Episode, Frames, Status, Stop, Transition, Verdict
from terrella.data.videos import FrameArray

UNKNOWN = "the recording does not say whether it succeeded"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One episode of a dataset.

    Action t follows frame t; the action after the last frame may be missing.
    """

    source: str
    number: int
    video: FrameArray
    actions: NDArray[np.float64]
    rewards: Sequence[float] | None = None
    """One per frame: the reward that came with frame t."""
    success: bool | None = None
    """None if the dataset does not say; the outcome is then masked, not a failure."""
    task: str = ""


def recorded_episode(recording: Recording) -> Episode:
    """Convert a recording to an episode; an action becomes a text of numbers."""
    video, actions = recording.video, recording.actions
    if len(video) < 2 or len(actions) < len(video) - 1:
        raise StoreError(
            recording.source,
            f"recording {recording.number} has {len(video)} frames and {len(actions)} actions",
        )
    rewards = recording.rewards
    if rewards is not None and len(rewards) < len(video):
        raise StoreError(
            recording.source,
            f"recording {recording.number} has {len(video)} frames and {len(rewards)} rewards",
        )
    if not (np.isfinite(actions).all() and np.isfinite(rewards or 0.0).all()):
        raise StoreError(
            recording.source,
            f"recording {recording.number} has an action or a reward that is not a finite number",
            "leave this recording out",
        )
    frames = [Frames.of(image[None]) for image in video]
    success = bool(recording.success)
    instance = instance_id([recording.source, recording.number])
    if recording.success is None:
        outcome = Verdict.failed(Status.NO_OUTCOME, UNKNOWN)
    else:
        outcome = Verdict.of(float(success))
    return Episode(
        world=recording.source,
        policy="recorded",
        instance=instance,
        split=split_of(instance),
        seed=recording.number,
        noise_seed=0,
        first=frames[0],
        transitions=tuple(_transition(recording, frames, t) for t in range(len(frames) - 1)),
        stop=Stop.TERMINATED if success else Stop.OUT_OF_STEPS,
        outcome=outcome,
    )


def _transition(recording: Recording, frames: Sequence[Frames], t: int) -> Transition:
    is_last = t == len(frames) - 2
    success = bool(recording.success)
    return Transition(
        observation=frames[t],
        action=write_numbers(recording.actions[t]),
        next_observation=frames[t + 1],
        reward=float(recording.rewards[t + 1]) if recording.rewards else 0.0,
        terminated=success and is_last,
        truncated=not success and is_last,
        info={
            "valid": True,
            "effective": frames[t] != frames[t + 1],
            "success": success and is_last,
            "task": recording.task,
        },
    )


def write_numbers(action: NDArray[np.float64]) -> str:
    """An action as text, with six digits that count: some robots move by micrometres a step."""
    return " ".join(f"{float(number) + 0.0:+.6g}" for number in np.atleast_1d(action))
