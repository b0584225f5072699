"""Which rows a model may learn from and which it is asked: the official split, without repeats, or by whole games.

`official` is the published one: one state appears on both sides, and a fifth of its test rows stand verbatim in train.
`official_dedup` asks only what does not occur in train. `held_out_games` asks about games that were never trained on.
A twentieth of the train rows is kept for validation, so that the test rows choose nothing.
    pools = split_rows(records, "held_out_games"); pools[Split.TEST]
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from terrella.core.types import Split
from terrella.worlds.bytesized32.records import Record
from terrella.worlds.bytesized32.sources import load_records

Splits = Literal["official", "official_dedup", "held_out_games"]
EXAMPLE_GAME = "dishwasher"
"""The game that few-shot examples come from: never asked, never trained on."""
EVERY = 4
"""Every fourth game by name is held out: 8 of the 31."""
VALIDATION_SHARE = 0.05


@functools.lru_cache(maxsize=4)
def load_pools(path: Path | None, splits: Splits) -> dict[Split, tuple[Record, ...]]:
    """The rows of a folder, split; kept, because a run asks again and again."""
    return split_rows(load_records(path), splits)


def split_rows(records: Sequence[Record], splits: Splits) -> dict[Split, tuple[Record, ...]]:
    """Rows by split."""
    asked = [record for record in records if record.game != EXAMPLE_GAME]
    test = [record for record in asked if record.split == "test"]
    learnt = [record for record in asked if record.split == "train"]
    if splits == "official_dedup":
        known = {record.key for record in learnt}
        test = [record for record in test if record.key not in known]
    if splits == "held_out_games":
        held = held_out({record.game for record in asked})
        test = [record for record in test if record.game in held]
        learnt = [record for record in learnt if record.game not in held]
    validation = {record.key for record in learnt if _kept_back(record)}
    return {
        Split.TRAIN: tuple(record for record in learnt if record.key not in validation),
        Split.VALIDATION: tuple(record for record in learnt if record.key in validation),
        Split.TEST: tuple(test),
    }


def held_out(games: set[str]) -> list[str]:
    """The games that `held_out_games` asks about."""
    return sorted(games)[EVERY - 2 :: EVERY]


def _kept_back(record: Record) -> bool:
    """By question, not by row: the same question is never on both sides."""
    told = hashlib.sha256("\n".join(record.key).encode()).digest()
    return int.from_bytes(told[:4], "big") < VALIDATION_SHARE * 2**32
