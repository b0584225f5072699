"""How far a step lies from the data that a model was trained on, for any kind of observation.

The distance is the share of characters (or the mean difference of pixels) in which an observation differs from the
nearest one that was seen with the same action: 0 was seen, 1 is as far as can be, as is an action never seen.
    data = NearestData(store.transitions()); distances, steps = data.look_up([(observation, "Right")])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from terrella.core.types import Frames, Observation, Transition, show_text

MOST = 20_000
"""Different steps that are kept: the first so many; beyond, a search would cost more than a prediction."""
AT_ONCE = 64
"""Questions compared with all data in one go; bounds memory."""


def _numbers(observation: Observation) -> NDArray[np.int32]:
    if isinstance(observation, Frames):
        return observation.array.reshape(-1).astype(np.int32)
    return np.array([ord(character) for character in show_text(observation)], np.int32)


class NearestData:
    """Different (observation, action) pairs of a data set, searched by brute force."""

    def __init__(self, transitions: Iterable[Transition], most: int = MOST) -> None:
        """Keep the first `most` different pairs."""
        first: dict[tuple[Observation, str], Transition] = {}
        for step in transitions:
            first.setdefault((step.observation, step.action), step)
        self.different = len(first)
        self.pairs = frozenset(first)
        by_action: dict[str, list[Transition]] = {}
        for step in islice(first.values(), most):
            by_action.setdefault(step.action, []).append(step)
        self.steps = by_action
        self.width = max((len(_numbers(s.observation)) for s in first.values()), default=0)
        self.tables = {action: self._table([s.observation for s in steps]) for action, steps in by_action.items()}

    def _table(self, observations: Sequence[Observation]) -> NDArray[np.int32]:
        table = np.zeros((len(observations), self.width), np.int32)
        for row, observation in zip(table, observations, strict=True):
            numbers = _numbers(observation)[: self.width]
            row[: len(numbers)] = numbers
        return table

    def look_up(self, pairs: Sequence[tuple[Observation, str]]) -> tuple[NDArray[np.float64], list[Transition | None]]:
        """For each pair the distance to the nearest step with the same action, and that step."""
        distances = np.ones(len(pairs))
        steps: list[Transition | None] = [None] * len(pairs)
        for action in {action for _, action in pairs} & set(self.tables):
            places = [place for place, (_, asked) in enumerate(pairs) if asked == action]
            for start in range(0, len(places), AT_ONCE):
                some = places[start : start + AT_ONCE]
                found, nearest = self._search(action, [pairs[place][0] for place in some])
                distances[some] = found
                for place, index in zip(some, nearest, strict=True):
                    steps[place] = self.steps[action][index]
        return distances, steps

    def _search(
        self, action: str, observations: Sequence[Observation]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        asked, table = self._table(observations), self.tables[action]
        if isinstance(observations[0], Frames):
            far = np.abs(asked[:, None] - table[None]).mean(-1) / 255.0
        else:
            far = (asked[:, None] != table[None]).mean(-1)
        nearest = far.argmin(-1)
        return far[np.arange(len(far)), nearest], nearest
