"""Encode frames as PNG, also inside a data URL, so that a page needs no files beside it.

No imaging library is needed.
    data_url(frames.array[0])  # uint8, (height, width, 1, 3 or 4)
"""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG's colour type for grey, RGB and RGBA, by number of channels."""


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode one image as the bytes of a PNG file."""
    height, width, channels = pixels.shape
    if channels not in COLOUR_TYPES:
        raise ValueError(f"a picture has 1, 3 or 4 channels, not {channels}")
    rows = np.ascontiguousarray(pixels).reshape(height, width * channels)
    # Every scan line starts with a byte that names its filter; 0 is none.
    lines = np.hstack([np.zeros((height, 1), np.uint8), rows])
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    chunks = (
        _chunk(b"IHDR", header),
        _chunk(b"IDAT", zlib.compress(lines.tobytes(), 6)),
        _chunk(b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def data_url(pixels: NDArray[np.uint8]) -> str:
    """Encode one image as a `data:` URL."""
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()
