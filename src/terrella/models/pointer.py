"""Small networks that read a situation and score the actions it offers, and critics that value it.

A page or a board is read as words. Each word has its hash, its line, its position, and whether the
first line (the task of a web page) holds it too. An action is its verb, the line that it names
(`click 7`) and the positions of its other words, so a policy of 0.3M parameters can choose among
elements and texts that it has never seen. Nothing is generated.
    reading = Reader().read(inputs)
    logprobs = PointerPolicy(PointerSizes())(reading)
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

from terrella.models.policy_input import PolicyInput

WORD = re.compile(r"\(\d+,\d+\)|\w+|[^\s\w\"]")
NAMED_LINE = re.compile(r"\[(\d+)\]\s*")
BUCKETS, VERBS = 2048, 128
LINES, POSITIONS, REMEMBERED = 96, 24, 3
LAST_LINE = LINES - REMEMBERED - 2
COUNTDOWN = LINES - 1
"""The line of the steps left; the last actions have the `REMEMBERED` lines before it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A batch as tensors: B situations, T words, K actions."""

    words_BT: Tensor
    columns_BT: Tensor
    """The second half of a cell such as (2,3), which is read as row and column; else 0."""
    lines_BT: Tensor
    positions_BT: Tensor
    shared_BT: Tensor
    """1 where the word is also in the first line, 2 where it is only in some other line too."""
    filled_BT: Tensor
    verbs_BK: Tensor
    pools_BK3T: Tensor
    """Per action, three sets of weights over the words.

    Of the line that it names, of its own words in the first line, and of its own words elsewhere.
    """
    offered_BK: Tensor


@dataclass(frozen=True)
class Words:
    """A text as words with their lines and positions, and the line of each element id."""

    words: tuple[str, ...]
    lines: tuple[int, ...]
    positions: tuple[int, ...]
    named_lines: dict[str, int]


@dataclass(frozen=True)
class ReadInput:
    """The words of a policy input: its text, the steps left, and the last actions."""

    words: list[str]
    lines: list[int]
    positions: list[int]
    shared: list[int]
    named_lines: dict[str, int]


@lru_cache(maxsize=65536)
def _bucket(word: str) -> int:
    return zlib.crc32(word.lower().encode()) % (BUCKETS - 1) + 1


@lru_cache(maxsize=65536)
def _buckets(word: str) -> tuple[int, int]:
    row, comma, column = word.partition(",")
    return (_bucket(row), _bucket(column)) if comma and column else (_bucket(word), 0)


@lru_cache(maxsize=16384)
def _split(text: str, max_words: int) -> Words:
    words: list[str] = []
    lines: list[int] = []
    positions: list[int] = []
    named_lines: dict[str, int] = {}
    for number, line_text in enumerate(text.split("\n")):
        named = NAMED_LINE.match(line_text)
        line = min(number, LAST_LINE)
        if named:
            named_lines.setdefault(named[1], line)
            line_text = line_text[named.end() :]
        line_words = WORD.findall(line_text)
        words += line_words
        lines += [line] * len(line_words)
        positions += [min(position, POSITIONS - 1) for position in range(len(line_words))]
    return Words(
        tuple(words[:max_words]),
        tuple(lines[:max_words]),
        tuple(positions[:max_words]),
        named_lines,
    )


class Reader:
    """Turns policy inputs into tensors; a pure function of the text."""

    def __init__(self, max_words: int = 320) -> None:
        """The end of longer texts is cut off."""
        self.max_words = max_words

    def read(self, inputs: Sequence[PolicyInput]) -> Reading:
        """One padded batch."""
        rows = [self._read_one(policy_input) for policy_input in inputs]
        size = len(rows)
        longest = max(len(row.words) for row in rows)
        widest = max(1, max(len(policy_input.offered) for policy_input in inputs))
        numbers = np.zeros((5, size, longest), np.int64)
        verbs = np.zeros((size, widest), np.int64)
        pools = np.zeros((size, widest, 3, longest), np.float32)
        filled = np.zeros((size, longest), bool)
        offered = np.zeros((size, widest), bool)
        for b, (policy_input, row) in enumerate(zip(inputs, rows, strict=True)):
            count = len(row.words)
            buckets, columns = ([_buckets(word)[half] for word in row.words] for half in (0, 1))
            numbers[:, b, :count] = buckets, columns, row.lines, row.positions, row.shared
            filled[b, :count] = True
            offered[b, : len(policy_input.offered)] = True
            for k, action in enumerate(policy_input.offered):
                verbs[b, k] = _fill_pools(action, buckets, row, pools[b, k])
        arrays = (*numbers, filled, verbs, pools, offered)
        return Reading(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))

    def _read_one(self, policy_input: PolicyInput) -> ReadInput:
        text = _split(policy_input.text, self.max_words)
        extra = [(f"left{min(policy_input.steps_left, 15)}", COUNTDOWN, 0)]
        for age, action in enumerate(reversed(policy_input.past_actions[-REMEMBERED:])):
            for position, word in enumerate(action.split()[:4]):
                extra.append((word, COUNTDOWN - 1 - age, position))
        return ReadInput(
            words=[*text.words, *(word for word, _, _ in extra)],
            lines=[*text.lines, *(line for _, line, _ in extra)],
            positions=[*text.positions, *(position for _, _, position in extra)],
            shared=_shared(text) + [0] * len(extra),
            named_lines=text.named_lines,
        )


def _shared(text: Words) -> list[int]:
    pairs = [(word.lower(), line) for word, line in zip(text.words, text.lines, strict=True)]
    first = {word for word, line in pairs if line == 0}
    counts: dict[str, int] = {}
    for word, _ in pairs:
        counts[word] = counts.get(word, 0) + 1
    return [1 if word in first and line else 2 if counts[word] > 1 else 0 for word, line in pairs]


def _fill_pools(action: str, buckets: list[int], row: ReadInput, pools: NDArray[np.float32]) -> int:
    """Fill the three pools of an action; returns its verb."""
    verb, _, rest = action.partition(" ")
    target, _, tail = rest.partition(" ")
    if target in row.named_lines:
        named, rest = row.named_lines[target], tail
        own = [t for t, line in enumerate(row.lines) if line == named]
        pools[0, own] = 1.0 / max(1, len(own))
    action_words = {_bucket(word) for word in WORD.findall(rest)}
    matches = [t for t, bucket in enumerate(buckets) if bucket in action_words]
    for pool, is_first in ((1, True), (2, False)):
        chosen = [t for t in matches if (row.lines[t] == 0) is is_first]
        pools[pool, chosen] = 1.0 / max(1, len(chosen))
    return _bucket(verb) % VERBS


@dataclass(frozen=True, kw_only=True)
class PointerSizes:
    """Sizes of an encoder."""

    width: int = 64
    layers: int = 2
    heads: int = 4


class Encoder(nn.Module):
    """Words to hidden states; every word attends to every other.

    The embeddings of hash, line, position and `shared` are added up.
    """

    def __init__(self, sizes: PointerSizes) -> None:
        super().__init__()
        width = sizes.width
        self.words = nn.Embedding(BUCKETS, width)
        self.lines = nn.Embedding(LINES, width)
        self.places = nn.Embedding(POSITIONS, width)
        self.shared = nn.Embedding(3, width)
        for table in (self.words, self.lines, self.places, self.shared):
            nn.init.normal_(table.weight, std=0.3)
        layer = nn.TransformerEncoderLayer(
            width,
            sizes.heads,
            2 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.stack = nn.TransformerEncoder(
            layer, sizes.layers, nn.LayerNorm(width), enable_nested_tensor=False
        )

    def forward(self, reading: Reading) -> tuple[Tensor, Tensor]:
        """Hidden states of the words [B, T, D] and of the whole text [B, D]."""
        embedded = (
            self.words(reading.words_BT)
            + self.words(reading.columns_BT)
            + self.lines(reading.lines_BT)
        )
        embedded = embedded + self.places(reading.positions_BT) + self.shared(reading.shared_BT)
        hidden: Tensor = self.stack(embedded, src_key_padding_mask=~reading.filled_BT)
        filled = reading.filled_BT[..., None].float()
        return hidden, (hidden * filled).sum(1) / filled.sum(1)


class PointerPolicy(nn.Module):
    """Log-probabilities of the offered actions; -inf for padding.

    Each action attends to all words, beside the words that it points at.
    """

    def __init__(self, sizes: PointerSizes) -> None:
        super().__init__()
        width = sizes.width
        self.encoder = Encoder(sizes)
        self.verbs = nn.Embedding(VERBS, width)
        self.ask = nn.Linear(5 * width, width)
        self.look = nn.MultiheadAttention(width, sizes.heads, batch_first=True)
        self.mix = nn.Linear(6 * width, 2 * width)
        self.score = nn.Linear(2 * width, 1)

    def forward(self, reading: Reading) -> Tensor:
        """[B, K] log-probabilities."""
        hidden, whole = self.encoder(reading)
        pools = reading.pools_BK3T
        size, actions = pools.shape[:2]
        pointed = torch.bmm(pools.flatten(1, 2), hidden).view(size, actions, -1)
        parts = [self.verbs(reading.verbs_BK), pointed, whole[:, None].expand(-1, actions, -1)]
        queries = self.ask(torch.cat(parts, -1))
        attended, _ = self.look(
            queries, hidden, hidden, key_padding_mask=~reading.filled_BT, need_weights=False
        )
        parts.append(attended)
        scores: Tensor = self.score(nn.functional.gelu(self.mix(torch.cat(parts, -1))))[..., 0]
        return scores.masked_fill(~reading.offered_BK, -torch.inf).log_softmax(-1)


class TwoHeads(nn.Module):
    """Two heads that predict how an episode ends: [B, 2] logits each, for failure and success."""

    def __init__(self, sizes: PointerSizes) -> None:
        super().__init__()
        self.encoder = Encoder(sizes)
        self.first = _head(sizes.width)
        self.second = _head(sizes.width)

    def forward(self, reading: Reading) -> tuple[Tensor, Tensor]:
        _, whole = self.encoder(reading)
        return self.first(whole), self.second(whole)


def _head(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, 2 * width),
        nn.GELU(),
        nn.Linear(2 * width, width),
        nn.GELU(),
        nn.Linear(width, 2),
    )
