"""The process behind `isolated.Isolated`: builds one verifier and answers until the other side is gone.

python -m terrella.verify.isolated_child FD
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from terrella.core.config import load
from terrella.core.judge import judge
from terrella.core.protocols import Verifier
from terrella.core.types import Status, Verdict
from terrella.verify.wire import message_from, pack, pack_verdict, unpack_observation

GRACE_SECONDS = 10.0
"""We are killed at the time-out; if whoever should do it has itself been killed, the alarm does it this much later."""


def main(descriptor: int) -> None:
    """Set up as the first message says, then judge."""
    os.set_inheritable(descriptor, False)  # what a verifier starts must not hold the line open
    with socket.socket(fileno=descriptor) as connection:
        hello = message_from(connection, None)
        try:
            verifier = _build(hello)
        except Exception as error:  # noqa: BLE001  whatever stops a verifier from being built is told, not thrown away
            connection.sendall(pack({"ready": False, "error": f"{type(error).__name__}: {error}"}))
            return
        connection.sendall(pack({"ready": True}))
        _serve(connection, verifier, hello["timeout"] + GRACE_SECONDS)


def _build(hello: dict[str, Any]) -> Verifier:
    for module in hello["imports"]:
        importlib.import_module(module)
    verifier: Verifier = load(hello["config"]).build()
    limit = _mapped_bytes() + hello["memory_mb"] * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return verifier


def _mapped_bytes() -> int:
    """Address space in use: the interpreter and its libraries are not the verifier's spending."""
    statistics = Path("/proc/self/statm")
    return int(statistics.read_text().split()[0]) * resource.getpagesize() if statistics.exists() else 0


def _serve(connection: socket.socket, verifier: Verifier, seconds: float) -> None:
    while True:
        try:
            request = message_from(connection, None)
        except ConnectionError:
            return  # nobody asks any more
        signal.setitimer(signal.ITIMER_REAL, seconds)
        verdict = _judge(verifier, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.sendall(pack(pack_verdict(verdict)))


def _judge(verifier: Verifier, request: dict[str, Any]) -> Verdict:
    reply, truth, before = (unpack_observation(request[name]) for name in ("reply", "truth", "before"))
    name = type(verifier).__name__
    try:
        verdict = judge(verifier, reply=reply, truth=truth, before=before)
    except SystemExit:
        return Verdict.failed(Status.ERROR, f"{name} raised SystemExit")
    if not isinstance(verdict, Verdict):
        return Verdict.failed(Status.ERROR, f"{name} returned {type(verdict).__name__}, not a Verdict")
    return verdict


if __name__ == "__main__":
    main(int(sys.argv[1]))
