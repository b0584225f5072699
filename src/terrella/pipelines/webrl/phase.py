"""One phase of WebRL on disk: its folder, its parts, and the networks before and after it.

Phase 0 is the imitation of demonstrations; its folder is the shared base.
    phase = Phase(run, context, base.folder, number=1)
    attempts = phase.attempts()
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from terrella.core.integrity import damaged_files
from terrella.core.run_folder import RunFolder
from terrella.core.seeds import TASK_STREAM, stream
from terrella.data.attempts import Attempt, read_attempts
from terrella.pipelines.webrl.context import ACTOR_FILE, DEMONSTRATIONS_FILE, TrainContext

if TYPE_CHECKING:
    from terrella.engines.pointer.learner import Net

T = TypeVar("T")

logger = logging.getLogger("terrella")


@dataclass(frozen=True)
class Phase:
    """A phase by number. Every file in its folder is written whole or not at all."""

    run: RunFolder
    context: TrainContext
    base: Path
    number: int

    @property
    def previous(self) -> Self:
        return dataclasses.replace(self, number=self.number - 1)

    @property
    def name(self) -> str:
        return f"phase-{self.number:02d}"

    def file(self, name: str) -> Path:
        return (self.run / self.name if self.number else self.base) / name

    def part(self, name: str, kind: type[T], make: Callable[[], T]) -> T:
        """A value of this phase that is made once and kept as JSON."""
        return self.run.part(f"{self.name}/{name}", kind, make)

    def rng(self, use: int) -> np.random.Generator:
        """The random stream of one part of this phase."""
        return stream(TASK_STREAM, self.context.learner.seed, self.number, use)

    def attempts(self) -> list[Attempt]:
        return read_attempts(self.file("attempts.jsonl"))

    @property
    def replay_file(self) -> Path:
        """The replay buffer after this phase; after phase 0 it holds the demonstrations."""
        return self.file("replay.jsonl" if self.number else DEMONSTRATIONS_FILE)

    @property
    def actor_file(self) -> Path:
        return self.file(ACTOR_FILE)

    @property
    def critic_file(self) -> Path:
        return self.file("critic.safetensors")

    def actor(self) -> Net:
        """The actor after this phase."""
        return self.context.learner.net("actor", self.actor_file)

    def critic(self) -> Net:
        """The critic after this phase; after phase 0 it is new."""
        return self.context.learner.net("critic", self.critic_file if self.number else None)


def remove_damaged_phases(run: RunFolder) -> None:
    """Remove the first phase that was damaged and all after it; they are practised again.

    A phase is a function of the one before it and of the seed, so the result is the same.
    """
    folders = sorted(run.path.glob("phase-*"), key=lambda folder: int(folder.name[6:]))
    for number, folder in enumerate(folders):
        damaged = damaged_files(folder)
        if damaged:
            what = f"{folder.name}: {', '.join(damaged)} is damaged"
            logger.warning("%s; practice continues from the phase before it", what)
            for later in folders[number:]:
                shutil.rmtree(later)
            return
