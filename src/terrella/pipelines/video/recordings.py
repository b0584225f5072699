"""What the stores of a video model hold, compared with its config before anything is trained.

All frames have the size of the tokenizer, and all actions as many numbers as the config says, or as
those of the other stores. Only the columns of shapes and actions are read, a part at a time.
    check_recordings([Path("runs/rt1")], frame=(256, 320), numbers=13)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from terrella.core.errors import ConfigError, StoreError
from terrella.data.store import AGAIN, EpisodeStore

COLUMNS = ["shape", "action"]
CHANNELS = 3
IMPORT_AGAIN = "import the recordings again"
SIZE = "videos.trainer.tokenizer.size"


@dataclass(frozen=True)
class Held:
    """What the steps of one store look like."""

    folder: Path
    frames: tuple[tuple[int, int], ...]
    """Heights and widths."""
    numbers: tuple[int, ...]
    """How many numbers an action has."""


def check_recordings(folders: Iterable[Path], *, frame: tuple[int, int], numbers: int = 0) -> None:
    """Refuse stores whose frames have another size (height, width), or actions another length.

    With `numbers` 0 the first store says how many numbers an action has.
    """
    expected, said_by = numbers, "videos.action_numbers"
    for folder in folders:
        store = held(folder)
        _check_frames(store, frame)
        _check_numbers(store, expected or store.numbers[0], said_by)
        if not expected:
            expected, said_by = store.numbers[0], str(folder)


def held(folder: Path) -> Held:
    """Read what a store holds; ConfigError if it is not frames and numbers."""
    shapes: set[tuple[int, ...] | None] = set()
    lengths: set[int] = set()
    store = EpisodeStore.open(folder)
    for part in store.parts:
        for shape, action in _steps(folder / part.name):
            shapes.add(tuple(shape[1:]) if shape else None)
            lengths.add(_length(folder, action))
    frames = sorted((shape[0], shape[1]) for shape in shapes if shape and shape[2:] == (CHANNELS,))
    if len(frames) != len(shapes) or not frames:
        what = "holds steps without an RGB frame"
        raise ConfigError(str(folder), what, "name stores of frames in videos.stores")
    return Held(folder, tuple(frames), tuple(sorted(lengths)))


def _steps(path: Path) -> Iterator[tuple[Sequence[int] | None, str]]:
    """Shape and action of every step of a part."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=COLUMNS):
                for row in batch.to_pylist():
                    if row["action"] is not None:  # an episode without a step is one row
                        yield row["shape"], row["action"]
    except (ValueError, OSError) as error:  # Arrow's errors are one of the two
        raise StoreError(str(path), f"cannot be read: {error}", AGAIN) from error


def _length(folder: Path, action: str) -> int:
    """How many numbers an action has."""
    try:
        numbers = [float(part) for part in action.split()]
    except ValueError:
        numbers = []
    if not numbers or not all(map(math.isfinite, numbers)):
        what = f"has the action {action[:40]!r}, which is not numbers"
        raise ConfigError(str(folder), what, "name recordings of a robot in videos.stores")
    return len(numbers)


def _check_frames(store: Held, frame: tuple[int, int]) -> None:
    if store.frames == (frame,):
        return
    rows, columns = store.frames[0]
    has = " and ".join(f"{height} x {width}" for height, width in store.frames)
    set_size = f"set {SIZE}={rows} {SIZE.replace('size', 'columns')}={columns}"
    raise ConfigError(
        str(store.folder),
        f"its frames are {has}; the tokenizer of this config takes {frame[0]} x {frame[1]}",
        f"{IMPORT_AGAIN} with --set size={frame[0]},{frame[1]}"
        + (f", or {set_size}" if len(store.frames) == 1 else ""),
    )


def _check_numbers(store: Held, expected: int, said_by: str) -> None:
    if store.numbers == (expected,):
        return
    has = " and ".join(map(str, store.numbers))
    raise ConfigError(
        str(store.folder),
        f"its actions have {has} numbers; those of {said_by} have {expected}",
        f"{IMPORT_AGAIN} with all columns of the action (--set actions=...), or train a model of "
        "each robot by itself",
    )
