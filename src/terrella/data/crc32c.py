"""CRC-32C (Castagnoli) in numpy: the checksum of TFRecord files.

The Python library has the other polynomial only. A checksum is linear in the data: the bytes are
cut into lanes that advance together through tables, and neighbours are then joined in pairs. The
checksum of A followed by zeros is a linear map of the checksum of A.
    crc32c(b"123456789") == 0xE3069283
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78
GROUP = 16
"""Bytes of a lane that are read in one step."""
STEPS = 32
"""Steps of a lane: many short lanes keep numpy busy, few long ones save joining."""
BLOCK = 2**20
"""Bytes of all lanes together, at most: the indices of a block fit into the processor's cache."""
LOW, HALF = np.uint32(0xFFFF), np.uint32(16)
Words = NDArray[np.uint32]


@functools.cache
def _byte_table() -> tuple[int, ...]:
    """The effect of one byte on an empty register."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _after_zeros(registers: Words, count: int) -> Words:
    table = np.array(_byte_table(), np.uint32)
    for _ in range(count):
        registers = table[registers & np.uint32(0xFF)] ^ registers >> np.uint32(8)
    return registers


@functools.cache
def _pair_tables() -> tuple[Words, ...]:
    """The effect of each pair of bytes of a lane on the lane's checksum."""
    pairs = np.arange(2**16, dtype=np.uint32)
    return tuple(_after_zeros(pairs, count) for count in range(GROUP, 0, -2))


@functools.cache
def _zeros(count: int) -> tuple[Words, Words]:
    """The effect of zero bytes on the low and on the high half of a register."""
    if count == GROUP:
        halves = np.arange(2**16, dtype=np.uint32)
        return _after_zeros(halves, count), _after_zeros(halves << HALF, count)
    low, high = _zeros(count // 2)
    return _apply((low, high), low), _apply((low, high), high)


def _apply(tables: tuple[Words, Words], registers: Words) -> Words:
    return tables[0].take(registers & LOW) ^ tables[1].take(registers >> HALF)


def crc32c(data: bytes) -> int:
    """The checksum of the data."""
    register = 0xFFFFFFFF
    start = 0
    while len(data) - start >= 2 * GROUP:
        size = min(BLOCK, 1 << (len(data) - start).bit_length() - 1)
        register = _block(np.frombuffer(data, "<u2", size // 2, start), register)
        start += size
    table = _byte_table()
    for byte in data[start:]:
        register = table[(register ^ byte) & 0xFF] ^ register >> 8
    return register ^ 0xFFFFFFFF


def _block(pairs: NDArray[np.uint16], register: int) -> int:
    """Advance a register by a block, whose length is a power of two."""
    groups = len(pairs) * 2 // GROUP
    steps = min(STEPS, groups)
    lanes = np.zeros(groups // steps, np.uint32)
    lanes[0] = register
    tables = _pair_tables()
    # Step, pair and lane: each table is used on neighbouring numbers.
    columns = pairs.reshape(-1, steps, GROUP // 2).transpose(1, 2, 0).astype(np.intp, order="C")
    for step in columns:
        step[0] ^= lanes & LOW
        step[1] ^= lanes >> HALF
        lanes = tables[0].take(step[0])
        for table, column in zip(tables[1:], step[1:], strict=True):
            lanes ^= table.take(column)
    length = steps * GROUP
    while len(lanes) > 1:
        lanes = _apply(_zeros(length), lanes[0::2]) ^ lanes[1::2]
        length *= 2
    return int(lanes[0])
