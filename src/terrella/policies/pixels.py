"""Policies that see what a camera sees, and nothing else: they act on real frames and on imagined ones alike.

A `share` of random steps (from the world's proposals) makes a ladder of one network.
    Pixels(net.read, name="clone-400").act(moment)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import PolicyError
from terrella.core.types import Frames, Moment

Reader = Callable[[NDArray[np.uint8]], NDArray[np.float64]]


class Pixels:
    """A network's action for the last frame, as text of numbers."""

    def __init__(self, read: Reader, name: str, share: float = 0.0) -> None:
        """`share` of the steps are random."""
        self.read, self.name, self.share = read, name, share

    def act(self, moment: Moment) -> str:
        """The action for what is seen now."""
        seen = moment.observation
        if not isinstance(seen, Frames):
            raise PolicyError(self.name, f"is shown {seen.kind}, not frames")
        if moment.rng.random() < self.share:
            choices = moment.proposals()
            return choices[int(moment.rng.integers(len(choices)))]
        numbers = np.clip(self.read(seen.array[-1:])[0], -1.0, 1.0)
        return " ".join(f"{round(float(number), 2) + 0.0:+.2f}" for number in numbers)
