"""RLDS shards with a moving square: a writer of the format, independent of the reader."""

import struct
from fractions import Fraction

import av
import numpy as np


def video(frames=6, size=32, seed=0):
    """A bright moving square, which video codecs preserve well."""
    rng = np.random.default_rng(seed)
    images = np.full((frames, size, size, 3), 90, np.uint8)
    for t in range(frames):
        images[t, 4 : 4 + 8, 2 * t + 2 : 2 * t + 10] = rng.integers(150, 255, 3)
    return images


def varint(value):
    out = b""
    while True:
        value, low = value >> 7, value & 127
        if not value:
            return out + bytes([low])
        out += bytes([low | 128])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values):
    if isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    if isinstance(values[0], float):
        return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    return field(3, field(1, b"".join(varint(value % 2**64) for value in values)))


def checksum(data):
    """CRC-32C, bit by bit, masked as TFRecord wants it."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) % 2**32)


def record(columns):
    entries = b"".join(
        field(1, field(1, name.encode()) + field(2, feature(v))) for name, v in columns.items()
    )
    data = field(1, entries)
    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


def image_bytes(image, codec):
    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
    encoder = av.CodecContext.create(codec, "w")
    encoder.width, encoder.height = frame.width, frame.height
    encoder.pix_fmt = "rgb24" if codec == "png" else "yuvj444p"
    encoder.time_base = Fraction(1, 10)
    return b"".join(bytes(p) for p in [*encoder.encode(frame), *encoder.encode(None)])


def shard(codec="png", steps=4):
    return record(
        {
            "steps/observation/image": [image_bytes(image, codec) for image in video(steps)],
            "steps/action/world_vector": [0.1 * k for k in range(3 * steps)],
            "steps/action/gripper": [float(k % 2) for k in range(steps)],
            "steps/reward": [0.0] * (steps - 1) + [1.0],
            "steps/is_last": [0] * (steps - 1) + [1],
            "steps/language_instruction": [b"open the drawer"] * steps,
            "steps/discount": [-1] * steps,
        }
    )


def rt1_record(video, actions, codec="mjpeg"):
    """An episode as RT-1's shards have it: an action is 13 numbers in six columns."""
    widths = {
        "base_displacement_vector": 2,
        "base_displacement_vertical_rotation": 1,
        "gripper_closedness_action": 1,
        "rotation_delta": 3,
        "terminate_episode": 3,
        "world_vector": 3,
    }
    columns, first = {}, 0
    for name, width in widths.items():
        numbers = actions[:, first : first + width].ravel().tolist()
        whole = name == "terminate_episode"
        columns[f"steps/action/{name}"] = [int(x) if whole else float(x) for x in numbers]
        first += width
    return record(
        {
            "steps/observation/image": [image_bytes(image, codec) for image in video],
            **columns,
            "steps/reward": [0.0] * len(video),
            "steps/is_last": [0] * (len(video) - 1) + [1],
            "steps/observation/natural_language_instruction": [b"pick the can"] * len(video),
        }
    )
