"""Shards of episodes that are in memory: what a store would give, without one."""

from collections.abc import Sequence

import numpy as np

from terrella.core.types import Episode
from terrella.data.shards import Shards


class ListedShards(Shards):
    """Episodes that are in memory already, as one shard."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self.listed = [
            episode for episode in episodes if episode.transitions and not episode.stop.is_broken
        ]
        lengths = [len(episode.transitions) for episode in self.listed]
        self.lengths = [np.array(lengths, np.int64)] if lengths else []

    def load(self, shard: int) -> list[Episode]:
        return self.listed
