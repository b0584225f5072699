"""One phase of WebRL on disk: its folder, its parts, and the models before and after it.

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
from typing import Self, TypeVar

import numpy as np

from terrella.core.integrity import damaged_files
from terrella.core.protocols import Progress
from terrella.core.run_folder import RunFolder
from terrella.core.seeds import TASK_STREAM, stream
from terrella.data.attempts import Attempt, read_attempts
from terrella.pipelines.webrl.context import DEMONSTRATIONS_FILE, TrainContext

T = TypeVar("T")

logger = logging.getLogger("terrella")


@dataclass(frozen=True)
class NumberedProgress:
    """A display that puts something before the names of what it shows."""

    display: Progress
    before: str

    def phase(self, name: str, total: int) -> None:
        self.display.phase(f"{self.before}{name}", total)

    def advance(self, done: int, **metrics: float) -> None:
        self.display.advance(done, **metrics)

    def note(self, text: str) -> None:
        self.display.note(f"{self.before}{text}")


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

    @property
    def progress(self) -> Progress:
        """The display of the run, with the number of this phase before every name."""
        return NumberedProgress(self.run.progress, f"phase {self.number}, ")

    def file(self, name: str) -> Path:
        return (self.run / self.name if self.number else self.base) / name

    def part(
        self, name: str, kind: type[T], make: Callable[[], T], *, collective: bool = False
    ) -> T:
        """A value of this phase that is made once and kept as JSON."""
        return self.run.part(f"{self.name}/{name}", kind, make, collective=collective)

    def rng(self, use: int) -> np.random.Generator:
        """The random stream of one part of this phase."""
        return stream(TASK_STREAM, self.context.seed, self.number, use)

    def attempts(self) -> list[Attempt]:
        return read_attempts(self.file("attempts.jsonl"))

    @property
    def replay_file(self) -> Path:
        """The replay buffer after this phase; after phase 0 it holds the demonstrations."""
        return self.file("replay.jsonl" if self.number else DEMONSTRATIONS_FILE)

    @property
    def actor(self) -> Path:
        """The actor after this phase."""
        return self.file(f"actor{self.context.agent.suffix}")

    @property
    def critic(self) -> Path | None:
        """The critic after this phase; after phase 0 it is new."""
        return self.file(f"critic{self.context.agent.suffix}") if self.number else None

    @property
    def base_actor(self) -> Path:
        return self.base / f"actor{self.context.agent.suffix}"


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
