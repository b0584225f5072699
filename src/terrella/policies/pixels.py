"""Policies that see only camera frames, so that they act on real and imagined frames alike.

With `share`, that fraction of the steps is random (from the world's proposals): one network gives
policies of graded strength. With `noise`, actions are disturbed: for practice.
    Pixels(net.read, name="clone-400").act(moment)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import PolicyError
from terrella.core.types import Frames, Moment

Reader = Callable[[NDArray[np.uint8]], NDArray[np.float64]]
"""A network: a batch of frames in, a batch of actions out."""


class Pixels:
    """Plays a network's action for the last frame, written as numbers in [-1, 1]."""

    def __init__(self, read: Reader, name: str, share: float = 0.0, noise: float = 0.0) -> None:
        """`share` is the probability of a random step.

        `noise` is the standard deviation of what is added to each number of an action.
        """
        self.read = read
        self.name = name
        self.share = share
        self.noise = noise

    def act(self, moment: Moment) -> str:
        observation = moment.observation
        if not isinstance(observation, Frames):
            raise PolicyError(self.name, f"the observation is {observation.kind}, not frames")
        if moment.rng.random() < self.share:
            choices = moment.proposals()
            return choices[int(moment.rng.integers(len(choices)))]
        numbers = self.read(observation.array[-1:])[0]
        if self.noise:
            numbers = numbers + self.noise * moment.rng.standard_normal(len(numbers))
        numbers = np.clip(numbers, -1.0, 1.0)
        return " ".join(f"{round(float(number), 2) + 0.0:+.2f}" for number in numbers)
