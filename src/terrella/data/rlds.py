"""Read Open X-Embodiment (RLDS) shards as episodes: TFRecord files without TensorFlow.

A record is a `tf.train.Example` with a whole episode, each column flattened over its steps: images
as JPEG or PNG, numbers as lists. The record framing and the protobuf message are parsed here.
    folder = Path("fractal20220817_data/0.1.0")
    for episode in read_rlds(folder, actions=("action/world_vector",)): ...
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from terrella.core.errors import StoreError
from terrella.core.types import Episode
from terrella.data.recorded import Recording, recorded_episode
from terrella.data.videos import decode_image, resize

MAX_RECORD_BYTES = 2**31
"""A record with a larger length is damaged."""
Values = list[bytes] | list[float] | list[int]


def read_rlds(
    source: Path,
    *,
    image: str = "observation/image",
    actions: Sequence[str] = ("action",),
    size: tuple[int, int] | None = None,
    name: str = "",
) -> Iterator[Episode]:
    """Yield every episode of a shard, or of all shards in a folder.

    Columns are named without their prefix `steps/`.
    """
    shards = [source] if source.is_file() else sorted(source.glob("*.tfrecord*"))
    if not shards:
        raise StoreError(str(source), "has no .tfrecord file")
    number = 0
    for shard in shards:
        for record in records(shard):
            columns = read_example(record)
            yield _episode(columns, image, actions, size, name or f"rlds/{source.name}", number)
            number += 1


def _episode(
    columns: Mapping[str, Values],
    image: str,
    actions: Sequence[str],
    size: tuple[int, int] | None,
    source: str,
    number: int,
) -> Episode:
    missing = [key for key in (image, *actions) if f"steps/{key}" not in columns]
    if missing:
        names = ", ".join(sorted(key.removeprefix("steps/") for key in columns))
        raise StoreError(source, f"has no column {missing[0]!r}", f"use one of: {names}")
    images = [decode_image(data) for data in columns[f"steps/{image}"] if isinstance(data, bytes)]
    video = np.stack([resize(frame, size) if size else frame for frame in images])
    parts = [np.array(columns[f"steps/{key}"], float).reshape(len(video), -1) for key in actions]
    rewards = columns.get("steps/reward")
    return recorded_episode(
        Recording(
            source=source,
            number=number,
            video=video,
            actions=np.concatenate(parts, axis=1),
            rewards=[float(value) for value in rewards] if rewards else None,
            success=float(rewards[-1]) > 0 if rewards else None,
            task=_task(columns),
        )
    )


def _task(columns: Mapping[str, Values]) -> str:
    texts = columns.get("steps/language_instruction") or columns.get(
        "steps/observation/natural_language_instruction"
    )
    if not texts or not isinstance(texts[0], bytes):
        return ""
    return texts[0].decode("utf-8", "replace")


# --- TFRecord: length, its checksum, data, their checksum -----------------------------------------


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file; StoreError if it ends in the middle of a record."""
    with path.open("rb") as file:
        while head := file.read(12):
            length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else MAX_RECORD_BYTES
            data = file.read(length + 4) if length < MAX_RECORD_BYTES else b""
            if len(data) != length + 4:
                raise StoreError(
                    str(path), f"is cut off or damaged at byte {file.tell()}", "download it again"
                )
            yield data[:-4]


# --- tf.train.Example: a map from names to lists of bytes, floats or integers ---------------------


def read_example(data: bytes) -> dict[str, Values]:
    """Parse an Example into its columns, by name."""
    columns: dict[str, Values] = {}
    for _, features in _fields(data):
        for _, entry in _fields(_message(features)):
            parts = dict(_fields(_message(entry)))
            columns[_message(parts[1]).decode()] = _feature(_message(parts.get(2, b"")))
    return columns


def _feature(data: bytes) -> Values:
    for kind, content in _fields(data):
        values = [value for _, value in _fields(_message(content))]
        if kind == 1:
            return [_message(value) for value in values]
        if kind == 2:
            return _floats(values)
        return _integers(values)
    return []


def _floats(values: Sequence[int | bytes]) -> list[float]:
    packed = b"".join(
        value if isinstance(value, bytes) else struct.pack("<I", value) for value in values
    )
    return [float(number) for number in np.frombuffer(packed, "<f4")]


def _integers(values: Sequence[int | bytes]) -> list[int]:
    integers: list[int] = []
    for value in values:
        numbers = _varints(value) if isinstance(value, bytes) else [value]
        integers += [number - 2**64 if number >= 2**63 else number for number in numbers]
    return integers


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the field numbers and values of a protobuf message."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield key >> 3, value
        elif kind == 2:
            length, position = _varint(data, position)
            yield key >> 3, _slice(data, position, length)
            position += length
        elif kind == 5:
            yield key >> 3, struct.unpack("<I", _slice(data, position, 4))[0]
            position += 4
        else:
            raise StoreError(
                "tf.train.Example", f"has a field of wire type {kind}", "it is not an Example"
            )


def _slice(data: bytes, start: int, length: int) -> bytes:
    if start + length > len(data):
        raise StoreError(
            "tf.train.Example", "has a field longer than its message", "the record is damaged"
        )
    return data[start : start + length]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = _slice(data, position, 1)[0]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


def _varints(data: bytes) -> list[int]:
    values, position = [], 0
    while position < len(data):
        value, position = _varint(data, position)
        values.append(value)
    return values


def _message(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise StoreError(
            "tf.train.Example", "has a number in place of a message", "it is not an Example"
        )
    return value
