"""Small networks that read a situation and point at one of the actions it offers; and critics that read it and judge.

A page or a board is read as words: each has its hash, its line, its place, and whether the first line (a web page's
task) holds it too. An action is its verb, the line that it names (`click 7`) and where its other words stand, so that
a policy of 0.3M parameters can choose among elements and texts it has never met. Nothing is generated.
    reading = Reader().read(situations); scores = PointerPolicy(sizes)(reading); heads = TwoHeads(sizes)(reading)
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

WORD = re.compile(r"\(\d+,\d+\)|\w+|[^\s\w\"]")
NAMED_LINE = re.compile(r"\[(\d+)\]\s*")
BUCKETS, VERBS = 2048, 128
LINES, PLACES, REMEMBERED = 96, 24, 3
LAST_LINE = LINES - REMEMBERED - 2
COUNTDOWN = LINES - 1
"""Lines of their own for what was done last and for how many steps are left."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A situation as a network may know it."""

    text: str
    offered: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    """What was done so far; the last few are read."""
    steps_left: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """A batch as numbers: B situations, T words, K actions."""

    words_BT: Tensor
    columns_BT: Tensor
    """The second half of a cell such as (2,3), which is read as its row and its column; 0 for other words."""
    lines_BT: Tensor
    places_BT: Tensor
    shared_BT: Tensor
    """1 where the word also stands in the first line, 2 where it only stands in some other line too."""
    filled_BT: Tensor
    verbs_BK: Tensor
    pools_BK3T: Tensor
    """Weights over words per action: of the line it names, of its own words in the first line, and elsewhere."""
    offered_BK: Tensor


@lru_cache(maxsize=65536)
def _bucket(word: str) -> int:
    return zlib.crc32(word.lower().encode()) % (BUCKETS - 1) + 1


@lru_cache(maxsize=65536)
def _buckets(word: str) -> tuple[int, int]:
    row, comma, column = word.partition(",")
    return (_bucket(row), _bucket(column)) if comma and column else (_bucket(word), 0)


Words = tuple[list[str], list[int], list[int], dict[str, int]]


@lru_cache(maxsize=16384)
def _split(text: str, most: int) -> Words:
    """Words, their lines, their places in them, and which line has which name."""
    words: list[str] = []
    lines: list[int] = []
    places: list[int] = []
    names: dict[str, int] = {}
    for number, line in enumerate(text.split("\n")):
        named = NAMED_LINE.match(line)
        at = min(number, LAST_LINE)
        if named:
            names.setdefault(named[1], at)
            line = line[named.end() :]
        found = WORD.findall(line)
        words += found
        lines += [at] * len(found)
        places += [min(place, PLACES - 1) for place in range(len(found))]
    return words[:most], lines[:most], places[:most], names


class Reader:
    """Turns situations into arrays; pure, so the same text is always read the same."""

    def __init__(self, most_words: int = 320) -> None:
        """Longer texts lose their end."""
        self.most_words = most_words

    def read(self, sights: Sequence[Sight]) -> Reading:
        """One padded batch."""
        rows = [self._row(sight) for sight in sights]
        longest = max(len(row[0]) for row in rows)
        widest = max(1, max(len(sight.offered) for sight in sights))
        size = len(rows)
        numbers = np.zeros((5, size, longest), np.int64)
        verbs, pools = np.zeros((size, widest), np.int64), np.zeros((size, widest, 3, longest), np.float32)
        filled, offered = np.zeros((size, longest), bool), np.zeros((size, widest), bool)
        for b, (sight, (words, lines, places, shared, names)) in enumerate(zip(sights, rows, strict=True)):
            count = len(words)
            buckets, columns = ([_buckets(word)[half] for word in words] for half in (0, 1))
            numbers[:, b, :count] = buckets, columns, lines, places, shared
            filled[b, :count], offered[b, : len(sight.offered)] = True, True
            for k, action in enumerate(sight.offered):
                verbs[b, k] = self._point(action, buckets, lines, names, pools[b, k])
        arrays = (*numbers, filled, verbs, pools, offered)
        return Reading(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))

    def _row(self, sight: Sight) -> tuple[list[str], list[int], list[int], list[int], dict[str, int]]:
        words, lines, places, names = _split(sight.text, self.most_words)
        first = {word.lower() for word, line in zip(words, lines, strict=True) if line == 0}
        counts: dict[str, int] = {}
        for word in words:
            counts[word.lower()] = counts.get(word.lower(), 0) + 1
        shared = [
            1 if word.lower() in first and line else 2 if counts[word.lower()] > 1 else 0
            for word, line in zip(words, lines, strict=True)
        ]
        extra = [(f"left{min(sight.steps_left, 15)}", COUNTDOWN, 0)]
        for age, action in enumerate(reversed(sight.done[-REMEMBERED:])):
            extra += [(word, COUNTDOWN - 1 - age, place) for place, word in enumerate(action.split()[:4])]
        return (
            words + [word for word, _, _ in extra], lines + [line for _, line, _ in extra],
            places + [place for _, _, place in extra], shared + [0] * len(extra), names,
        )  # fmt: skip

    @staticmethod
    def _point(
        action: str, buckets: list[int], lines: list[int], names: dict[str, int], pools: NDArray[np.float32]
    ) -> int:
        """Fill the three pools of an action; returns its verb."""
        verb, _, rest = action.partition(" ")
        target, _, tail = rest.partition(" ")
        if target in names:
            named, rest = names[target], tail
            own = [t for t, line in enumerate(lines) if line == named]
            pools[0, own] = 1.0 / max(1, len(own))
        said = {_bucket(word) for word in WORD.findall(rest)}
        for pool, is_first in ((1, True), (2, False)):
            at = [t for t, bucket in enumerate(buckets) if bucket in said and (lines[t] == 0) is is_first]
            pools[pool, at] = 1.0 / max(1, len(at))
        return _bucket(verb) % VERBS


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of an encoder."""

    width: int = 64
    layers: int = 2
    heads: int = 4


class Encoder(nn.Module):
    """Words to hidden states; every word sees every other."""

    def __init__(self, sizes: Sizes) -> None:
        """Embeddings of hash, line, place and mark are added up."""
        super().__init__()
        width = sizes.width
        self.words, self.lines = nn.Embedding(BUCKETS, width), nn.Embedding(LINES, width)
        self.places, self.shared = nn.Embedding(PLACES, width), nn.Embedding(3, width)
        for table in (self.words, self.lines, self.places, self.shared):
            nn.init.normal_(table.weight, std=0.3)
        layer = nn.TransformerEncoderLayer(
            width, sizes.heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.stack = nn.TransformerEncoder(layer, sizes.layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, reading: Reading) -> tuple[Tensor, Tensor]:
        """[B, T, D] of words and [B, D] of the whole."""
        seen = self.words(reading.words_BT) + self.words(reading.columns_BT) + self.lines(reading.lines_BT)
        seen = seen + self.places(reading.places_BT) + self.shared(reading.shared_BT)
        hidden: Tensor = self.stack(seen, src_key_padding_mask=~reading.filled_BT)
        filled = reading.filled_BT[..., None].float()
        return hidden, (hidden * filled).sum(1) / filled.sum(1)


class PointerPolicy(nn.Module):
    """One score per offered action; what is not offered scores -inf."""

    def __init__(self, sizes: Sizes) -> None:
        """Each action looks at the words it wants to, beside those it points at."""
        super().__init__()
        width = sizes.width
        self.encoder, self.verbs = Encoder(sizes), nn.Embedding(VERBS, width)
        self.ask = nn.Linear(5 * width, width)
        self.look = nn.MultiheadAttention(width, sizes.heads, batch_first=True)
        self.mix, self.score = nn.Linear(6 * width, 2 * width), nn.Linear(2 * width, 1)

    def forward(self, reading: Reading) -> Tensor:
        """[B, K] log-probabilities."""
        hidden, whole = self.encoder(reading)
        pools = reading.pools_BK3T
        size, actions = pools.shape[:2]
        pointed = torch.bmm(pools.flatten(1, 2), hidden).view(size, actions, -1)
        parts = [self.verbs(reading.verbs_BK), pointed, whole[:, None].expand(-1, actions, -1)]
        asked = self.ask(torch.cat(parts, -1))
        parts.append(self.look(asked, hidden, hidden, key_padding_mask=~reading.filled_BT, need_weights=False)[0])
        scores: Tensor = self.score(nn.functional.gelu(self.mix(torch.cat(parts, -1))))[..., 0]
        return scores.masked_fill(~reading.offered_BK, -torch.inf).log_softmax(-1)


class TwoHeads(nn.Module):
    """Two opinions about how an episode will end: [B, 2] logits each, for failure and success."""

    def __init__(self, sizes: Sizes) -> None:
        """Heads of three layers on a trunk of their own."""
        super().__init__()
        self.encoder = Encoder(sizes)
        self.first, self.second = _head(sizes.width), _head(sizes.width)

    def forward(self, reading: Reading) -> tuple[Tensor, Tensor]:
        """Both heads' logits."""
        _, whole = self.encoder(reading)
        return self.first(whole), self.second(whole)


def _head(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 2)
    )
