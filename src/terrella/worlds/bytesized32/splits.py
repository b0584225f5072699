"""Split the records into train, validation and test.

`official` is the published split: states appear on both sides, and a fifth of its test records also
occur in train. `official_dedup` leaves these out of test. `held_out_games` tests on games that are
never trained on. 5% of the train records are set aside for validation, so that nothing is tuned on
test records.
    pools = split_records(records, "held_out_games")
    pools[Split.TEST]
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
"""The game of the few-shot examples: never tested, never trained on."""
EVERY = 4
"""Every fourth game by name is held out: 8 of the 31."""
VALIDATION_SHARE = 0.05


@functools.lru_cache(maxsize=4)
def load_pools(path: Path | None, splits: Splits) -> dict[Split, tuple[Record, ...]]:
    """The records of a folder by split; cached, because a run asks for them repeatedly."""
    return split_records(load_records(path), splits)


def split_records(records: Sequence[Record], splits: Splits) -> dict[Split, tuple[Record, ...]]:
    """Assign the records to splits."""
    usable = [record for record in records if record.game != EXAMPLE_GAME]
    test = [record for record in usable if record.split == "test"]
    train = [record for record in usable if record.split == "train"]
    if splits == "official_dedup":
        train_keys = {record.key for record in train}
        test = [record for record in test if record.key not in train_keys]
    if splits == "held_out_games":
        test_games = held_out({record.game for record in usable})
        test = [record for record in test if record.game in test_games]
        train = [record for record in train if record.game not in test_games]
    validation_keys = {record.key for record in train if _is_validation(record)}
    return {
        Split.TRAIN: tuple(record for record in train if record.key not in validation_keys),
        Split.VALIDATION: tuple(record for record in train if record.key in validation_keys),
        Split.TEST: tuple(test),
    }


def held_out(games: set[str]) -> list[str]:
    """The test games of `held_out_games`."""
    return sorted(games)[EVERY - 2 :: EVERY]


def _is_validation(record: Record) -> bool:
    """Decide by key, so that records with the same key are never on both sides."""
    digest = hashlib.sha256("\n".join(record.key).encode()).digest()
    return int.from_bytes(digest[:4], "big") < VALIDATION_SHARE * 2**32
