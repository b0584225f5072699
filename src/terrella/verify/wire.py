"""Wire format between a process and its isolated verifier: a length, then JSON. No pickle.

pack({"ready": True}) == b'\\x00\\x00\\x00\\x0e{"ready":true}'
"""

from __future__ import annotations

import base64
import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from terrella.core.types import Frames, Kind, Observation, State, Status, Text, Tree, Verdict

LENGTH = struct.Struct("!I")
_TEXTS: dict[str, type[Text] | type[State] | type[Tree]] = {
    Kind.TEXT: Text,
    Kind.STATE: State,
    Kind.TREE: Tree,
}


def pack(message: Mapping[str, Any]) -> bytes:
    """Encode one message. ASCII only, so that lone surrogates in a reply survive."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return LENGTH.pack(len(body)) + body


def read_message(connection: socket.socket, deadline: float | None) -> dict[str, Any]:
    """Receive the next message.

    Raises TimeoutError after the deadline and ConnectionError if the other side has closed.
    """
    (length,) = LENGTH.unpack(_receive(connection, LENGTH.size, deadline))
    message = json.loads(_receive(connection, length, deadline))
    if not isinstance(message, dict):
        raise ValueError(f"expected an object, got {type(message).__name__}")
    return message


def _receive(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 1e-6))
        chunk = connection.recv(min(size - len(chunks), 1 << 20))
        if not chunk:
            raise ConnectionError("the other side has closed")
        chunks += chunk
    return bytes(chunks)


def pack_observation(observation: Observation) -> dict[str, Any]:
    """Encode an observation as JSON values."""
    if isinstance(observation, Frames):
        return {
            "kind": Kind.FRAMES,
            "data": base64.b64encode(observation.data).decode(),
            "shape": observation.shape,
        }
    return {"kind": observation.kind, "text": observation.text}


def unpack_observation(data: Mapping[str, Any]) -> Observation:
    if data["kind"] == Kind.FRAMES:
        t, h, w, c = data["shape"]
        return Frames(base64.b64decode(data["data"]), (t, h, w, c))
    return _TEXTS[data["kind"]](data["text"])


def pack_verdict(verdict: Verdict) -> dict[str, Any]:
    """Encode a verdict as JSON values."""
    parts = {name: float(value) for name, value in verdict.parts.items()}
    value = None if verdict.value is None else float(verdict.value)
    return {"value": value, "parts": parts, "status": verdict.status, "evidence": verdict.evidence}


def unpack_verdict(data: Mapping[str, Any]) -> Verdict:
    """Inverse of `pack_verdict`; ValueError, KeyError or TypeError if the data is not a verdict."""
    return Verdict(
        value=data["value"],
        parts=data["parts"],
        status=Status(data["status"]),
        evidence=data["evidence"],
    )
