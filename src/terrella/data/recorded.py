"""Recordings of other people's robots as episodes: a film, an action between two frames, what is known of success.

An instance is the dataset and the number of the recording, so that splits are disjoint and the same everywhere.
    recorded_episode(Recording(source="lerobot/pusht", number=3, film=film, actions=actions))
    store_recordings(Path("runs/pusht"), read_lerobot(Path("pusht"), size=(64, 64)), source="pusht")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import StoreError
from terrella.core.instances import instance_id, split_of
from terrella.core.types import Episode, Frames, Status, Stop, Transition, Verdict
from terrella.data.films import Pictures
from terrella.data.parts import encode_part
from terrella.data.store import finish, locked, settle_plan, write_part

CHUNK = 50
"""Recordings in one file of a store."""
UNKNOWN = "the recording does not say whether it succeeded"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a dataset holds of one episode. Frame t was seen, then action t was done; the last action is not needed."""

    source: str
    number: int
    film: Pictures
    actions: NDArray[np.float64]
    rewards: Sequence[float] | None = None
    """As the frames; what came with frame t."""
    success: bool | None = None
    """None where the dataset does not say: the outcome is then masked, not a failure."""
    task: str = ""


def recorded_episode(recording: Recording) -> Episode:
    """The recording as an episode; actions as texts of numbers."""
    film, actions = recording.film, recording.actions
    if len(film) < 2 or len(actions) < len(film) - 1:
        what = f"recording {recording.number} has {len(film)} frames and {len(actions)} actions"
        raise StoreError(recording.source, what)
    frames = [Frames.of(picture[None]) for picture in film]
    last, won = len(film) - 2, bool(recording.success)
    rewards = recording.rewards or [0.0] * len(film)
    steps = tuple(
        Transition(
            observation=frames[t], action=write_numbers(actions[t]), next_observation=frames[t + 1],
            reward=float(rewards[t + 1]), terminated=won and t == last, truncated=not won and t == last,
            info={"valid": True, "effective": frames[t] != frames[t + 1], "success": won and t == last,
                  "task": recording.task},
        )
        for t in range(len(film) - 1)
    )  # fmt: skip
    instance = instance_id([recording.source, recording.number])
    known = recording.success is not None
    outcome = Verdict.of(float(won)) if known else Verdict.failed(Status.ERROR, UNKNOWN)
    return Episode(
        world=recording.source, policy="recorded", instance=instance, split=split_of(instance), seed=recording.number,
        noise_seed=0, first=frames[0], transitions=steps, stop=Stop.TERMINATED if won else Stop.OUT_OF_STEPS,
        outcome=outcome,
    )  # fmt: skip


def write_numbers(action: NDArray[np.float64]) -> str:
    """An action as text: enough digits to bin it, none to spare."""
    return " ".join(f"{float(number) + 0.0:+.4f}" for number in np.atleast_1d(action))


def store_recordings(folder: Path, episodes: Iterable[Episode], *, source: str) -> dict[str, Any]:
    """Recordings into an episode store, a few in memory at a time; whole when it returns, its manifest."""
    with locked(folder):
        plan, parts, count = settle_plan(folder, {"source": source}), [], 0
        coming = iter(episodes)
        while some := list(islice(coming, CHUNK)):
            parts.append(write_part(folder, encode_part(some, count, plan)))
            count += len(some)
        return finish(folder, parts, {"source": source})
