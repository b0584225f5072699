"""Replay buffer: successes of earlier phases, mixed into the new data of a phase (WebRL).

A step is replayed if the current actor finds it neither certain nor very unlikely: its perplexity
must lie in a band (by default 1/0.95 to 1/0.5, as published). At most `ratio` times the number of
new steps is drawn. The buffer is saved as attempts; a draw is a function of the buffer, the
probabilities and a random stream, so a resumed run draws the same steps.
    replay.add(successes)
    steps, counts = replay.draw(probabilities, new_steps=3000, rng=rng)
    replay.save(path)
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
"""Index of an attempt in the buffer, and of a step in it."""


class Replay(Configurable):
    """The buffer: the first success of each instance."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Size of the draw and the band of probabilities."""

        ratio: float = 2.0
        """Maximum number of old steps per new step; 0 disables replay."""
        least_chance: float = 0.5
        """Lower end of the band (exclusive).

        The band is over the mean probability per token under the current actor (1 / perplexity).
        """
        most_chance: float = 0.95
        """Upper end of the band (inclusive)."""

        def __post_init__(self) -> None:
            if not 0 <= self.least_chance < self.most_chance <= 1 or self.ratio < 0:
                raise ConfigError(
                    "replay",
                    f"no band {self.least_chance:g}..{self.most_chance:g}, ratio {self.ratio}",
                    "use 0 <= least_chance < most_chance <= 1 and ratio >= 0",
                )

    config: Config

    def __init__(self, config: Config, attempts: Sequence[Attempt] = ()) -> None:
        super().__init__(config)
        self.attempts = list(attempts)
        self._names = {attempt.name for attempt in self.attempts}

    def add(self, successes: Sequence[Attempt]) -> int:
        """Add the first success of each instance; returns the number of new ones."""
        before = len(self.attempts)
        for attempt in successes:
            if attempt.name not in self._names:
                self._names.add(attempt.name)
                self.attempts.append(attempt)
        return len(self.attempts) - before

    def steps(self) -> list[StepAt]:
        """All steps of the buffer, in order; `draw` needs a probability for each."""
        return [
            (index, step)
            for index, attempt in enumerate(self.attempts)
            for step in range(len(attempt.choices))
        ]

    def draw(
        self, probabilities: Sequence[float], *, new_steps: int, rng: np.random.Generator
    ) -> tuple[list[StepAt], dict[str, Any]]:
        """Draw steps in the band at random, up to the limit; also returns counts.

        `probabilities` are the mean probabilities per token of `steps()`.
        """
        steps = self.steps()
        probs = np.asarray(probabilities, dtype=np.float64)
        if len(steps) != len(probs):
            raise ValueError(f"{len(probs)} probabilities for {len(steps)} steps")
        low, high = self.config.least_chance, self.config.most_chance
        in_band = np.flatnonzero((probs > low) & (probs <= high))
        chosen = rng.permutation(in_band)[: int(self.config.ratio * new_steps)]
        counts = {
            "buffer_steps": len(steps),
            "foreign": int((probs <= low).sum()),
            "certain": int((probs > high).sum()),
            "in_band": len(in_band),
            "drawn": len(chosen),
        }
        return [steps[index] for index in chosen], counts

    def save(self, path: Path) -> None:
        """Write the whole buffer as attempts."""
        write_attempts(path, self.attempts)

    @classmethod
    def load(cls, config: Config, path: Path) -> Replay:
        return cls(config, read_attempts(path))
