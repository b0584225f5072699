"""Distance of a step to the training data of a model, for any kind of observation.

The distance is the share of characters (or the mean difference of pixels) in which an observation
differs from the nearest one that was recorded with the same action. The share is of the longest
text in the data, or of the observation if that is longer: what is beyond the data differs from it.
0 means that the step is in the data; 1 is the maximum, and also the distance of an action, or of
frames of a shape, that never occurs in the data.
    data = NearestData.of_episodes(store.episodes())
    distances, steps = data.look_up([(observation, "Right")])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from terrella.core.types import Episode, Frames, Observation, Transition, show_text

MOST = 20_000
"""Maximum number of distinct steps in the index: a larger search would cost more than a prediction.

The first ones in the data are used.
"""
AT_ONCE = 64
"""Lookups that are compared with all data at once; bounds memory."""


Shape = tuple[int, ...]
"""Shape of frames; empty for text. Only observations of one shape are compared."""
PADDING = -1
"""Beyond the end of a text; no character."""


def _shape(observation: Observation) -> Shape:
    return observation.shape if isinstance(observation, Frames) else ()


def _numbers(observation: Observation) -> NDArray[np.int32]:
    if isinstance(observation, Frames):
        return observation.array.reshape(-1).astype(np.int32)
    return np.array([ord(character) for character in show_text(observation)], np.int32)


def _result(step: Transition) -> tuple[Observation, float, bool]:
    return step.next_observation, step.reward, step.terminated


class NearestData:
    """Index of the distinct (observation, action) pairs of a data set, searched by brute force."""

    instances: frozenset[str] = frozenset()
    """The instances of the episodes, where they are known."""

    @classmethod
    def of_episodes(cls, episodes: Iterable[Episode]) -> Self:
        """Index the steps of episodes, and keep which instances they are of."""
        instances: set[str] = set()

        def steps() -> Iterator[Transition]:
            for episode in episodes:
                instances.add(episode.instance)
                yield from episode.transitions

        data = cls(steps())
        data.instances = frozenset(instances)
        return data

    def __init__(self, transitions: Iterable[Transition], limit: int = MOST) -> None:
        """Index the first `limit` distinct pairs."""
        first: dict[tuple[Observation, str], Transition] = {}
        repeated: set[tuple[Observation, str]] = set()
        varied: set[tuple[Observation, str]] = set()
        for step in transitions:
            pair = (step.observation, step.action)
            before = first.setdefault(pair, step)
            if before is not step:
                repeated.add(pair)
                if _result(before) != _result(step):
                    varied.add(pair)
        self.unique_pairs = len(first)
        self.repeated_pairs = len(repeated)
        self.varied_pairs = len(varied)
        """Pairs with more than one result: the world is random, or hides a part of its state."""
        self.pairs = frozenset(first)
        by_action: dict[str, list[Transition]] = {}
        for step in islice(first.values(), limit):
            by_action.setdefault(step.action, []).append(step)
        self.steps = by_action
        texts = (s.observation for s in first.values() if not _shape(s.observation))
        self.width = max((len(show_text(text)) for text in texts), default=0)
        """Characters of the longest text in the data."""
        self._comparable: dict[tuple[str, Shape], list[Transition]] = {}
        for step in chain.from_iterable(by_action.values()):
            self._comparable.setdefault((step.action, _shape(step.observation)), []).append(step)
        self._tables = {
            key: self._table([s.observation for s in steps])
            for key, steps in self._comparable.items()
        }

    def _table(self, observations: Sequence[Observation]) -> NDArray[np.int32]:
        """One row per observation; all have the same shape. Texts are cut at `width`."""
        width = math.prod(_shape(observations[0])) if _shape(observations[0]) else self.width
        table = np.full((len(observations), width), PADDING, np.int32)
        for row, observation in zip(table, observations, strict=True):
            numbers = _numbers(observation)[:width]
            row[: len(numbers)] = numbers
        return table

    def look_up(
        self, pairs: Sequence[tuple[Observation, str]]
    ) -> tuple[NDArray[np.float64], list[Transition | None]]:
        """Distance of each pair to the nearest step with the same action, and that step.

        The step is None if the data have none with this action, or none with frames of this shape.
        """
        distances = np.ones(len(pairs))
        steps: list[Transition | None] = [None] * len(pairs)
        keys = [(action, _shape(observation)) for observation, action in pairs]
        for key in set(keys) & set(self._tables):
            indices = [index for index, wanted in enumerate(keys) if wanted == key]
            for start in range(0, len(indices), AT_ONCE):
                batch = indices[start : start + AT_ONCE]
                batch_distances, nearest = self._search(key, [pairs[index][0] for index in batch])
                distances[batch] = batch_distances
                for index, row in zip(batch, nearest, strict=True):
                    steps[index] = self._comparable[key][row]
        return distances, steps

    def _search(
        self, key: tuple[str, Shape], observations: Sequence[Observation]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        queries, table = self._table(observations), self._tables[key]
        if key[1]:
            far = np.abs(queries[:, None] - table[None]).mean(-1) / 255.0
        else:
            lengths = np.array([len(show_text(each)) for each in observations])[:, None]
            beyond = np.maximum(lengths - self.width, 0)
            differing = (queries[:, None] != table[None]).sum(-1) + beyond
            far = differing / np.maximum(np.maximum(lengths, self.width), 1)
        nearest = far.argmin(-1)
        return far[np.arange(len(far)), nearest], nearest
