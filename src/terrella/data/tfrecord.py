"""TFRecord files and `tf.train.Example` messages, read without TensorFlow.

A record is a length, its checksum, data, their checksum. Both checksums are compared before the
length or the data are believed. The data is a protobuf message: a map from names to lists of bytes,
floats or integers.
    for place, record in records(path): columns = read_example(record, place)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from terrella.core.errors import StoreError
from terrella.core.untrusted import reading
from terrella.data.crc32c import crc32c

MAX_RECORD_BYTES = 2**30
MAX_COLUMNS = 10_000
MAX_VARINT_BYTES = 10
"""The longest number of 64 bits."""
REMEDY = "download it again"
Values = list[bytes] | list[float] | list[int]


def records(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the place and the data of each record; StoreError at the first damaged one."""
    with reading(str(path), REMEDY), path.open("rb") as file:
        size = path.stat().st_size
        number = start = 0
        while start < size:
            place = f"{path}, record {number} at byte {start}"
            head = file.read(12)
            length = int.from_bytes(head[:8], "little")
            _check(head[:8], head[8:], place, "length")
            if length > MAX_RECORD_BYTES:
                raise StoreError(place, f"has {length:,} bytes, more than {MAX_RECORD_BYTES:,}")
            if start + length + 16 > size:
                raise StoreError(place, "is cut off", REMEDY)
            data, checksum = file.read(length), file.read(4)
            _check(data, checksum, place, "data")
            yield place, data
            number, start = number + 1, start + length + 16


def count_records(path: Path) -> int:
    """How many records a file has by their lengths; their data is not read."""
    count = start = 0
    with reading(str(path), REMEDY), path.open("rb") as file:
        size = path.stat().st_size
        while start < size:
            file.seek(start)
            head = file.read(12)
            _check(head[:8], head[8:], f"{path}, record {count} at byte {start}", "length")
            count, start = count + 1, start + int.from_bytes(head[:8], "little") + 16
    return count


def _check(data: bytes, checksum: bytes, place: str, part: str) -> None:
    if len(checksum) < 4:
        raise StoreError(place, "is cut off", REMEDY)
    if masked_checksum(data) != int.from_bytes(checksum, "little"):
        raise StoreError(place, f"is damaged: the checksum of its {part} differs", REMEDY)


def masked_checksum(data: bytes) -> int:
    """The checksum as TFRecord stores it: turned, so that checksums of checksums are harmless."""
    value = crc32c(data)
    return (value >> 15 | value << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF


# --- tf.train.Example -----------------------------------------------------------------------------


def read_example(data: bytes, place: str = "tf.train.Example") -> dict[str, Values]:
    """Parse an Example into its columns, by name; errors name the place."""
    columns: dict[str, Values] = {}
    with reading(place, "it is not a tf.train.Example"):
        for _, features in _fields(data):
            for _, entry in _fields(_message(features)):
                parts = dict(_fields(_message(entry)))
                if 1 not in parts:
                    raise ValueError("a column has no name")
                columns[_message(parts[1]).decode()] = _feature(_message(parts.get(2, b"")))
                if len(columns) > MAX_COLUMNS:
                    raise ValueError(f"it has more than {MAX_COLUMNS} columns")
    return columns


def _feature(data: bytes) -> Values:
    for kind, content in _fields(data):
        values = [value for _, value in _fields(_message(content))]
        if kind == 1:
            return [_message(value) for value in values]
        if kind == 2:
            return _floats(values)
        if kind == 3:
            return _integers(values)
        raise ValueError(f"a column is of the unknown kind {kind}")
    return []


def _floats(values: Sequence[int | bytes]) -> list[float]:
    packed = b"".join(
        value if isinstance(value, bytes) else struct.pack("<I", value) for value in values
    )
    numbers: list[float] = np.frombuffer(packed, "<f4").tolist()
    return numbers


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
            raise ValueError(f"a field has the wire type {kind}")


def _slice(data: bytes, start: int, length: int) -> bytes:
    if start + length > len(data):
        raise ValueError("a field is longer than its message")
    return data[start : start + length]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[position : position + MAX_VARINT_BYTES]):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value & 2**64 - 1, position + index + 1
    raise ValueError(f"a number is cut off or longer than {MAX_VARINT_BYTES} bytes")


def _varints(data: bytes) -> list[int]:
    values, position = [], 0
    while position < len(data):
        value, position = _varint(data, position)
        values.append(value)
    return values


def _message(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number stands in place of a message")
    return value
