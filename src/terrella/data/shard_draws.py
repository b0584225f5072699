"""Draws of clips from shards: shuffled, repeatable by number, a few shards in memory.

Draw i is a pure function of i, so a resumed run gets the same clips. The shards are shuffled, anew
in every pass. A window of a few shards slides over them, and clips are drawn from the window, every
start of a clip with the same probability. Draws should be asked for in order: the next shards are
read and decoded by threads meanwhile. Each rank has a lane of its own, with its own shards.
    draws = ShardDraws(shards, least=7, count=100_000, seed=0)
    episode, start = draws[17]     # a clip of at least seven steps
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import ConfigError
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.types import Episode
from terrella.data.shards import Shards

WINDOW = 8
"""Shards that clips are drawn from at a time."""
WORKERS = 2
"""Threads that read and decode the next shards."""
LEAST_DRAWS = 64
"""Draws before the window moves on, at least: reading a shard should pay."""
ORDER_STREAM_OFFSET = 2**41
"""Keeps the shuffling of shards apart, by number, from the draws."""


class ShardDraws:
    """Clips by number; see the module's docstring."""

    def __init__(  # noqa: PLR0913  what is drawn, how often, and how it is split among ranks
        self,
        shards: Shards,
        *,
        least: int,
        count: int,
        seed: int,
        first: int = 0,
        lanes: int = 1,
        batch: int = 1,
        window: int = WINDOW,
        workers: int = WORKERS,
    ) -> None:
        """A clip has `least` steps at least; with 0 it may be the last frame alone.

        `count` is about how many draws there will be: the window moves so that they cover all
        shards, or the whole data several times. `first` is added to the number of every draw, to
        keep uses apart. Draws go to `lanes` in turn, `batch` at a time.
        """
        starts = [np.maximum(lengths - least + 1, 0) for lengths in shards.lengths]
        self.shards = shards
        self.numbers = [number for number, each in enumerate(starts) if each.sum()]
        if not self.numbers:
            raise ConfigError("horizon", f"no episode has {least} steps")
        self.edges = {number: np.cumsum(starts[number]) for number in self.numbers}
        self.lanes = lanes if len(self.numbers) >= lanes else 1
        self.seed, self.first, self.batch = seed, first, batch
        self.window = min(window, len(self.numbers) // self.lanes)
        clips = sum(int(edges[-1]) for edges in self.edges.values()) / len(self.numbers)
        per_shard = min(count / len(self.numbers), clips)
        self.draws_per_move = max(LEAST_DRAWS, round(per_shard))
        self._threads = max(1, workers)
        self._orders: dict[int, NDArray[np.int64]] = {}
        self._begin()

    def _begin(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._loaded: dict[int, Future[list[Episode]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Another process has threads and shards of its own."""
        return {key: value for key, value in self.__dict__.items() if key not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __getitem__(self, index: int) -> tuple[Episode, int]:
        """The episode of a draw and the step at which its clip begins."""
        lane, turn = self._lane(index)
        move = turn // self.draws_per_move
        window = self._window(lane, move)
        rng = stream(TASK_STREAM, self.seed, self.first + index)
        weights = np.cumsum([self.edges[number][-1] for number in window])
        place = int(rng.integers(weights[-1]))
        slot = int(np.searchsorted(weights, place, side="right"))
        number = window[slot]
        place -= int(weights[slot - 1]) if slot else 0
        edges = self.edges[number]
        position = int(np.searchsorted(edges, place, side="right"))
        start = place - (int(edges[position - 1]) if position else 0)
        return self._read(number, [*window, *self._window(lane, move + 1)[-1:]])[position], start

    def __len__(self) -> int:
        """Number of shards that have a clip."""
        return len(self.numbers)

    def _lane(self, index: int) -> tuple[int, int]:
        """The lane of a draw, and its number in that lane."""
        round_, rest = divmod(index, self.batch * self.lanes)
        lane, within = divmod(rest, self.batch)
        return lane, round_ * self.batch + within

    def _window(self, lane: int, move: int) -> list[int]:
        """The shards that draws come from: a window on the endless sequence of passes."""
        if len(self) <= self.window:
            return self.numbers
        size = len(self.numbers[lane :: self.lanes])
        places = range(move, move + self.window)
        return [int(self._order(lane, place // size)[place % size]) for place in places]

    def _order(self, lane: int, epoch: int) -> NDArray[np.int64]:
        """The shards of a lane in the order of one pass."""
        if epoch not in self._orders:
            rng = stream(TASK_STREAM, self.seed, ORDER_STREAM_OFFSET + epoch)
            self._orders = {each: self._orders[each] for each in list(self._orders)[-1:]}
            self._orders[epoch] = rng.permutation(np.array(self.numbers))
        return self._orders[epoch][lane :: self.lanes]

    # --- reading ----------------------------------------------------------------------------------

    def _read(self, number: int, kept: Sequence[int]) -> list[Episode]:
        """A shard; the last one of `kept` will be needed next, and those not in it are dropped."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="shards")
            for each in (number, kept[-1]):
                if each not in self._loaded:
                    self._loaded[each] = self._pool.submit(self.shards.load, each)
            for each in self._loaded.keys() - set(kept):
                del self._loaded[each]
            wanted = self._loaded[number]
        return wanted.result()


_OWN = ("_pool", "_lock", "_loaded")
