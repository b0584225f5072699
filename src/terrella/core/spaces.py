"""Gymnasium spaces of named actions and of observation records.

Names(("Up", "Down")).sample() -> "Up"; Text("...") in Observations(Kind.TEXT) -> True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from terrella.core.types import Frames, Kind, Observation, State, Text, Tree

_RECORDS: dict[Kind, type[Observation]] = {
    Kind.TEXT: Text,
    Kind.STATE: State,
    Kind.TREE: Tree,
    Kind.FRAMES: Frames,
}


class Names(gymnasium.Space[str]):
    """A finite set of named actions. Sampling is uniform."""

    def __init__(self, names: Sequence[str], seed: int | np.random.Generator | None = None) -> None:
        self.names = tuple(names)
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """One name, uniformly. Masks are refused: they are for numeric spaces."""
        if mask is not None or probability is not None:
            raise TypeError("Names.sample takes no mask: choose among the names you want instead")
        return self.names[int(self.np_random.integers(len(self.names)))]

    def contains(self, x: Any) -> bool:
        return x in self.names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and self.names == other.names

    def __repr__(self) -> str:
        return f"Names({', '.join(self.names)})"


class Observations(gymnasium.Space[Observation]):
    """All observation records of one kind."""

    def __init__(self, kind: Kind, example: Observation | None = None) -> None:
        """`sample` returns `example`: a space of all texts has no useful distribution."""
        self.kind, self.example = kind, example
        super().__init__(shape=None, dtype=None)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> Observation:
        if self.example is None:
            raise TypeError(f"no example of a {self.kind} observation: reset the world first")
        return self.example

    def contains(self, x: Any) -> bool:
        return isinstance(x, _RECORDS[self.kind])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Observations) and self.kind == other.kind

    def __repr__(self) -> str:
        return f"Observations({self.kind})"
