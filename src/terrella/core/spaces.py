"""Gymnasium spaces for what language and video worlds speak: named actions, and observation records.

Names(("Up", "Down")).sample() -> "Up";   Text("...") in Observations(Kind.TEXT) -> True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from terrella.core.types import Frames, Kind, Observation, State, Text, Tree

_RECORDS: dict[Kind, type[Observation]] = {
    Kind.TEXT: Text, Kind.STATE: State, Kind.TREE: Tree, Kind.FRAMES: Frames,
}  # fmt: skip


class Names(gymnasium.Space[str]):
    """A finite set of named actions. Sampling is uniform."""

    def __init__(self, names: Sequence[str], seed: int | np.random.Generator | None = None) -> None:
        """Keep the names in order."""
        self.names = tuple(names)
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Names are not numbers."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """One name, uniformly; masks are for numeric spaces and are refused."""
        if mask is not None or probability is not None:
            raise TypeError("Names.sample takes no mask: choose among the names you want instead")
        return self.names[int(self.np_random.integers(len(self.names)))]

    def contains(self, x: Any) -> bool:
        """True for one of the names."""
        return x in self.names

    def __eq__(self, other: object) -> bool:
        """Spaces with the same names in the same order are equal."""
        return isinstance(other, Names) and self.names == other.names

    def __repr__(self) -> str:
        """Show the names."""
        return f"Names({', '.join(self.names)})"


class Observations(gymnasium.Space[Observation]):
    """All observation records of one kind."""

    def __init__(self, kind: Kind, example: Observation | None = None) -> None:
        """`example` is what `sample` returns: a space of all texts has no useful uniform distribution."""
        self.kind, self.example = kind, example
        super().__init__(shape=None, dtype=None)

    @property
    def is_np_flattenable(self) -> bool:
        """Records are not arrays."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> Observation:
        """The example the world gave; there is no distribution over all observations to draw from."""
        if self.example is None:
            raise TypeError(f"no example of a {self.kind} observation: reset the world first")
        return self.example

    def contains(self, x: Any) -> bool:
        """True for a record of this kind."""
        return isinstance(x, _RECORDS[self.kind])

    def __eq__(self, other: object) -> bool:
        """Spaces of the same kind are equal."""
        return isinstance(other, Observations) and self.kind == other.kind

    def __repr__(self) -> str:
        """Show the kind."""
        return f"Observations({self.kind})"
