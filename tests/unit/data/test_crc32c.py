"""CRC-32C: published values, and the same as bit by bit for lengths around every boundary."""

import numpy as np
import pytest

from terrella.data.crc32c import BLOCK, GROUP, crc32c
from terrella.data.tfrecord import masked_checksum


def bit_by_bit(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_published_values():
    # RFC 3720, appendix B.4, and the usual check value.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("length", [0, 1, GROUP, 2 * GROUP - 1, 2 * GROUP, 1000, 4097, 9999])
def test_the_same_as_bit_by_bit(length):
    data = np.random.default_rng(length).bytes(length)
    assert crc32c(data) == bit_by_bit(data)


def test_blocks_are_chained():
    data = np.random.default_rng(0).bytes(BLOCK + 33)
    changed = bytes([data[0] ^ 1]) + data[1:]
    assert crc32c(data) != crc32c(changed)
    # A checksum of A and B is the checksum of A, advanced by B: one byte more or less agrees.
    table_step = crc32c(data[:-1]) ^ 0xFFFFFFFF
    value = table_step ^ data[-1]
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    assert crc32c(data) == value ^ 0xFFFFFFFF


def test_the_mask_of_tfrecord():
    # The length 24 as TensorFlow writes it: eight bytes and their masked checksum.
    value = crc32c((24).to_bytes(8, "little"))
    rotated = (value >> 15 | value << 17) & 0xFFFFFFFF
    assert masked_checksum((24).to_bytes(8, "little")) == (rotated + 0xA282EAD8) % 2**32
