"""The data of a learner's call: shared out over processes, and put together again.

Every process holds all data, so it knows what the others compute and how long their answers are.
    shares = share_out(data, processes=2)
    mine = data[shares[0]]
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from terrella.core.errors import EngineError
from terrella.core.tokens import TrainExample


def share_out(data: Sequence[TrainExample], *, processes: int) -> list[slice]:
    """Neighbouring examples for each process, with about as many tokens; some may get none.

    Neighbours stay together because they may share a prompt.
    """
    sizes = [len(example.prompt_ids) + len(example.completion_ids) for example in data]
    ends = list(itertools.accumulate(sizes))
    owners = [
        int((end - size / 2) * processes / ends[-1]) for end, size in zip(ends, sizes, strict=True)
    ]
    starts = [sum(owner < process for owner in owners) for process in range(processes + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(starts)]


def check_same_data(accelerator: Any, data: Sequence[TrainExample]) -> None:
    """Refuse data that differ between processes: their shares would not add up to a batch."""
    if accelerator.num_processes == 1:
        return
    digest = 0
    for example in data:
        for values in (example.prompt_ids, example.completion_ids, example.mask):
            digest = zlib.crc32(np.asarray(values, dtype=np.int64).tobytes(), digest)
    local = torch.tensor([digest], dtype=torch.long, device=accelerator.device)
    if len(set(accelerator.gather(local).tolist())) > 1:
        raise EngineError(
            "learner", "processes passed different data", "pass all data on every process"
        )


def gather_targets(
    accelerator: Any, data: Sequence[TrainExample], shares: Sequence[slice], mine: Sequence[Tensor]
) -> list[tuple[float, ...]]:
    """The numbers of all targets, per completion token of each example; `mine` are those of packs.

    Tokens that are no targets get 0.0.
    """
    counts = [sum(sum(example.mask) for example in data[share]) for share in shares]
    padded = torch.zeros(1, max(counts, default=0), device=accelerator.device)
    if mine:
        numbers = torch.cat([each.detach().float() for each in mine])
        padded[0, : len(numbers)] = numbers
    everyone = accelerator.gather(padded).cpu()
    whole = torch.cat([row[:count] for row, count in zip(everyone, counts, strict=True)])
    numbers_of = iter(whole.tolist())
    return [_per_token(example, numbers_of) for example in data]


def _per_token(example: TrainExample, numbers: Iterator[float]) -> tuple[float, ...]:
    return tuple(next(numbers) if is_target else 0.0 for is_target in example.mask)
