"""Open X-Embodiment (RLDS) shards as episodes: TFRecord files read without TensorFlow.

A record is a `tf.train.Example` that holds a whole episode, each column flattened over its steps: pictures as JPEG or
PNG, numbers as lists. Framing and message are read here, in plain Python; nothing else of TensorFlow is needed.
    for episode in read_rlds(Path("fractal20220817_data/0.1.0"), actions=("action/world_vector",)): ...
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from terrella.core.errors import StoreError
from terrella.core.types import Episode
from terrella.data.films import decode_picture, resize
from terrella.data.recorded import Recording, recorded_episode

LARGEST = 2**31
"""A record that says it is longer is damaged."""
Values = list[bytes] | list[float] | list[int]


def read_rlds(
    source: Path, *, image: str = "observation/image", actions: Sequence[str] = ("action",),
    size: tuple[int, int] | None = None, name: str = "",
) -> Iterator[Episode]:  # fmt: skip
    """Every episode of a shard, or of all shards in a folder. Columns are named as inside `steps/`."""
    shards = [source] if source.is_file() else sorted(source.glob("*.tfrecord*"))
    if not shards:
        raise StoreError(str(source), "holds no .tfrecord file")
    number = 0
    for shard in shards:
        for record in records(shard):
            columns = read_example(record)
            yield _episode(columns, image, actions, size, name or f"rlds/{source.name}", number)
            number += 1


def _episode(
    columns: Mapping[str, Values], image: str, actions: Sequence[str], size: tuple[int, int] | None, source: str,
    number: int,
) -> Episode:  # fmt: skip
    missing = [key for key in (image, *actions) if f"steps/{key}" not in columns]
    if missing:
        known = ", ".join(sorted(key.removeprefix("steps/") for key in columns))
        raise StoreError(source, f"has no column {missing[0]!r}", f"columns: {known}")
    pictures = [decode_picture(data) for data in columns[f"steps/{image}"] if isinstance(data, bytes)]
    film = np.stack([resize(picture, size) if size else picture for picture in pictures])
    parts = [np.array(columns[f"steps/{key}"], float).reshape(len(film), -1) for key in actions]
    rewards = columns.get("steps/reward")
    texts = columns.get("steps/language_instruction") or columns.get("steps/observation/natural_language_instruction")
    return recorded_episode(Recording(
        source=source, number=number, film=film, actions=np.concatenate(parts, axis=1),
        rewards=[float(value) for value in rewards] if rewards else None,
        success=float(rewards[-1]) > 0 if rewards else None,
        task=texts[0].decode("utf-8", "replace") if texts and isinstance(texts[0], bytes) else "",
    ))  # fmt: skip


# --- TFRecord: length, its checksum, data, their checksum -----------------------------------------------------------


def records(path: Path) -> Iterator[bytes]:
    """The records of a file; one that ends in the middle of a record is refused."""
    with path.open("rb") as file:
        while head := file.read(12):
            length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else LARGEST
            data = file.read(length + 4) if length < LARGEST else b""
            if len(data) != length + 4:
                raise StoreError(str(path), f"is cut off or damaged at byte {file.tell()}", "download it again")
            yield data[:-4]


# --- tf.train.Example: a map from names to lists of bytes, floats or integers -----------------------------------------


def read_example(data: bytes) -> dict[str, Values]:
    """Columns by name."""
    found: dict[str, Values] = {}
    for _, features in _fields(data):
        for _, entry in _fields(_message(features)):
            parts = dict(_fields(_message(entry)))
            found[_message(parts[1]).decode()] = _feature(_message(parts.get(2, b"")))
    return found


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
    packed = b"".join(value if isinstance(value, bytes) else struct.pack("<I", value) for value in values)
    return [float(number) for number in np.frombuffer(packed, "<f4")]


def _integers(values: Sequence[int | bytes]) -> list[int]:
    found: list[int] = []
    for value in values:
        numbers = _varints(value) if isinstance(value, bytes) else [value]
        found += [number - 2**64 if number >= 2**63 else number for number in numbers]
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a protobuf message."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
        elif kind == 2:
            length, place = _varint(data, place)
            yield key >> 3, _slice(data, place, length)
            place += length
        elif kind == 5:
            yield key >> 3, struct.unpack("<I", _slice(data, place, 4))[0]
            place += 4
        else:
            raise StoreError("tf.train.Example", f"a field of wire type {kind}", "this record is not an Example")


def _slice(data: bytes, place: int, length: int) -> bytes:
    if place + length > len(data):
        raise StoreError("tf.train.Example", "a field reaches beyond its message", "this record is damaged")
    return data[place : place + length]


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = _slice(data, place, 1)[0]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def _varints(data: bytes) -> list[int]:
    found, place = [], 0
    while place < len(data):
        value, place = _varint(data, place)
        found.append(value)
    return found


def _message(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise StoreError("tf.train.Example", "a number where a message should be", "this record is not an Example")
    return value
