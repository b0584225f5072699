"""Read Open X-Embodiment (RLDS) shards as episodes: TFRecord files without TensorFlow.

A record is a `tf.train.Example` with a whole episode, each column flattened over its steps: images
as JPEG or PNG, numbers as lists. Damaged records and numbers that are not finite are refused.
    folder = Path("fractal20220817_data/0.1.0")
    for episode in read_rlds(folder, actions=("action/world_vector",)): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import StoreError
from terrella.core.types import Episode
from terrella.core.untrusted import reading
from terrella.data.recorded import Recording, recorded_episode
from terrella.data.tfrecord import Values, read_example, records
from terrella.data.videos import FrameArray, decode_image, resize, stack_frames

REMEDY = "name the columns of images and actions, or download the shard again"


def read_rlds(
    source: Path,
    *,
    image: str = "observation/image",
    actions: Sequence[str] = ("action",),
    size: tuple[int, int] | None = None,
    first: int = 0,
) -> Iterator[Episode]:
    """Yield every episode of a shard, or of all shards in a folder, from number `first` on.

    Columns are named without their prefix `steps/`.
    """
    number = 0
    for shard in shards_of(source):
        for place, record in records(shard):
            if number < first:
                number += 1
                continue
            columns = read_example(record, place)
            with reading(place, REMEDY):
                recording = _recording(columns, image, actions, size)
                recording = replace(recording, source=f"rlds/{source.name}", number=number)
                episode = recorded_episode(recording)
            yield episode
            number += 1


def shards_of(source: Path) -> list[Path]:
    """The files of a dataset, in order: a shard itself, or all of a folder."""
    shards = [source] if source.is_file() else sorted(source.glob("*.tfrecord*"))
    if not shards:
        raise StoreError(str(source), "has no .tfrecord file", "check the path")
    return shards


def _recording(
    columns: Mapping[str, Values],
    image: str,
    actions: Sequence[str],
    size: tuple[int, int] | None,
) -> Recording:
    missing = [key for key in (image, *actions) if f"steps/{key}" not in columns]
    if missing:
        names = ", ".join(sorted(key.removeprefix("steps/") for key in columns))
        raise StoreError("rlds", f"there is no column {missing[0]!r}", f"use one of: {names}")
    video = stack_frames(_frames(columns[f"steps/{image}"], size))
    parts = [_numbers(columns[f"steps/{key}"]).reshape(len(video), -1) for key in actions]
    rewards = columns.get("steps/reward")
    return Recording(
        source="",
        number=0,
        video=video,
        actions=np.concatenate(parts, axis=1),
        rewards=_numbers(rewards).tolist() if rewards else None,
        success=bool(_numbers(rewards)[-1] > 0) if rewards else None,
        task=_task(columns),
    )


def _frames(images: Values, size: tuple[int, int] | None) -> Iterator[FrameArray]:
    for data in images:
        if not isinstance(data, bytes):
            raise ValueError("the column of images has numbers")
        frame = decode_image(data)
        yield resize(frame, size) if size else frame


def _numbers(values: Values) -> NDArray[np.float64]:
    if any(isinstance(value, bytes) for value in values):
        raise ValueError("a column of numbers has bytes")
    return np.array(values, np.float64)


def _task(columns: Mapping[str, Values]) -> str:
    texts = columns.get("steps/language_instruction") or columns.get(
        "steps/observation/natural_language_instruction"
    )
    if not texts or not isinstance(texts[0], bytes):
        return ""
    return texts[0].decode("utf-8", "replace")
