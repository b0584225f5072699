"""Sequences that the in-process sampler holds, and how prompts are cut and batched for a pass."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from terrella.core.tokens import Sampled, TokenRequest

READ_TOKENS = 8192
"""Padded tokens of one prefill pass: bounds memory, and separates rows of different length."""
CPU_READ_TOKENS = 2048
"""The same on a CPU, which gains nothing from more: a pass is a heartbeat, and takes seconds."""
READ_LENGTH = 1024
"""Tokens of one row in one prefill pass. A longer prompt is read in several steps.

Attention needs memory for each pair of tokens; and between two steps others are served, and callers
that have left are noticed.
"""


@dataclass(slots=True, eq=False)
class Row:
    """A sequence in a slot of the cache, and the request it serves while it is busy."""

    slot: int
    session: str | None
    request: TokenRequest
    done: asyncio.Future[Sampled]
    busy: bool = True
    cached: list[int] = field(default_factory=list[int])
    pending: list[int] = field(default_factory=list[int])
    uniforms: Any = None
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    fresh: bool = True
    """Whether nothing of the prompt was cached when the request started."""
    leader: Row | None = None
    """The row that is computed in place of this one: same prompt, same tokens so far.

    A leader has no leader itself.
    """

    @property
    def stopped(self) -> bool:
        return self.tokens[-1] in self.request.stop_ids

    @property
    def ended(self) -> bool:
        return self.stopped or len(self.tokens) == self.request.max_new_tokens


def next_piece(pending: list[int]) -> tuple[list[int], list[int]]:
    """What one pass reads of a long prompt, and the rest."""
    return pending[:READ_LENGTH], pending[READ_LENGTH:]


def is_long(row: Row) -> bool:
    return len(row.pending) > READ_LENGTH


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count


def batches_of(rows: Sequence[Row], *, on_cpu: bool) -> list[list[Row]]:
    """Batches of rows sorted by length, each of at most `READ_TOKENS` padded tokens."""
    most = min(READ_TOKENS, CPU_READ_TOKENS) if on_cpu else READ_TOKENS
    batches: list[list[Row]] = []
    for row in rows:
        if not batches or (len(batches[-1]) + 1) * len(row.pending) > most:
            batches.append([])
        batches[-1].append(row)
    return batches
