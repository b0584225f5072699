"""Frames as PNG files in a data URL: what a page shows without a file beside it. No imaging library is needed.

    data_url(frames.array[0])      # uint8, (height, width, 1, 3 or 4)
"""  # fmt: skip

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG's number for grey, RGB and RGBA."""


def png(pixels: NDArray[np.uint8]) -> bytes:
    """The file of one picture."""
    height, width, channels = pixels.shape
    if channels not in COLOUR_TYPES:
        raise ValueError(f"a picture has 1, 3 or 4 channels, not {channels}")
    rows = np.ascontiguousarray(pixels).reshape(height, width * channels)
    lines = np.hstack([np.zeros((height, 1), np.uint8), rows])  # each line begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def data_url(pixels: NDArray[np.uint8]) -> str:
    """The picture inside a URL."""
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()
