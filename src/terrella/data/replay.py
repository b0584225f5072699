"""Replay: successes of earlier phases, mixed into a phase's new data as far as the current actor can learn from them.

A step is worth replaying when the actor finds it neither certain nor foreign: its perplexity lies in a band (by default
1/0.95 to 1/0.5, as published). At most `ratio` times the new steps are drawn. The buffer is a file of attempts; what is
drawn is a function of the buffer, the scores and a random stream, so a resumed run draws the same.
    replay.add(successes); drawn = replay.draw(chances, new_steps=3000, rng=rng); replay.save(path)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.data.attempts import Attempt, read_attempts, write_attempts

StepAt = tuple[int, int]
"""Which attempt of the buffer, which of its steps."""


class Replay(Configurable):
    """The buffer: one success per task, the first."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """How much is replayed, and what."""

        ratio: float = 2.0
        """At most this many old steps per new one; 0 leaves replay out."""
        least_chance: float = 0.5
        most_chance: float = 0.95
        """Mean probability per token under the current actor (1 / perplexity): above the first, up to the second."""

        def __post_init__(self) -> None:
            """Refuse a band that holds nothing."""
            if not 0 <= self.least_chance < self.most_chance <= 1 or self.ratio < 0:
                raise ConfigError("replay", f"no band {self.least_chance:g}..{self.most_chance:g}, ratio {self.ratio}")

    config: Config

    def __init__(self, config: Config, attempts: Sequence[Attempt] = ()) -> None:
        """Begin with attempts that were kept before."""
        super().__init__(config)
        self.attempts = list(attempts)
        self._names = {attempt.task.name for attempt in self.attempts}

    def add(self, successes: Sequence[Attempt]) -> int:
        """Keep the first success of each task; returns how many were new."""
        before = len(self.attempts)
        for attempt in successes:
            if attempt.task.name not in self._names:
                self._names.add(attempt.task.name)
                self.attempts.append(attempt)
        return len(self.attempts) - before

    def steps(self) -> list[StepAt]:
        """All steps of the buffer, in order: what `draw` wants chances for."""
        return [(n, step) for n, attempt in enumerate(self.attempts) for step in range(len(attempt.choices))]

    def draw(
        self, chances: Sequence[float], *, new_steps: int, rng: np.random.Generator
    ) -> tuple[list[StepAt], dict[str, Any]]:
        """Steps in the band, shuffled and capped; and how many there were of each kind."""
        where, found = self.steps(), np.asarray(chances, dtype=np.float64)
        if len(where) != len(found):
            raise ValueError(f"{len(found)} chances for {len(where)} steps")
        low, high = self.config.least_chance, self.config.most_chance
        inside = np.flatnonzero((found > low) & (found <= high))
        chosen = rng.permutation(inside)[: int(self.config.ratio * new_steps)]
        counts = {"buffer_steps": len(where), "foreign": int((found <= low).sum()),
                  "certain": int((found > high).sum()), "in_band": len(inside), "drawn": len(chosen)}  # fmt: skip
        return [where[index] for index in chosen], counts

    def save(self, path: Path) -> None:
        """The whole buffer, as attempts."""
        write_attempts(path, self.attempts)

    @classmethod
    def load(cls, config: Config, path: Path) -> Replay:
        """A buffer that was saved."""
        return cls(config, read_attempts(path))
