"""Child process of `isolated.Isolated`: builds one verifier and serves requests until EOF.

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

from terrella.core.config import rebuild
from terrella.core.judge import attempt, failure
from terrella.core.protocols import Verifier
from terrella.core.types import Verdict
from terrella.verify.wire import pack, pack_verdict, read_message, unpack_observation

GRACE_SECONDS = 10.0
"""The alarm goes off this long after the time-out.

At the time-out the parent kills this process. The alarm does it if the parent itself was killed.
"""


def main(descriptor: int) -> None:
    """Set up as the first message says, then serve requests."""
    # Processes that a verifier starts must not keep the socket open.
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as connection:
        setup = read_message(connection, None)
        try:
            verifier = _build(setup)
        except Exception as error:  # noqa: BLE001  any failure is reported to the parent
            connection.sendall(pack({"ready": False, "error": f"{type(error).__name__}: {error}"}))
            return
        connection.sendall(pack({"ready": True}))
        _serve(connection, verifier, setup["timeout"] + GRACE_SECONDS)


def _build(setup: dict[str, Any]) -> Verifier:
    for module in setup["imports"]:
        importlib.import_module(module)
    verifier: Verifier = rebuild(setup["config"]).build()
    limit = _mapped_bytes() + setup["memory_mb"] * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return verifier


def _mapped_bytes() -> int:
    """Address space in use: the interpreter and its libraries do not count for the limit."""
    statistics = Path("/proc/self/statm")
    if not statistics.exists():
        return 0
    return int(statistics.read_text().split()[0]) * resource.getpagesize()


def _serve(connection: socket.socket, verifier: Verifier, seconds: float) -> None:
    while True:
        try:
            request = read_message(connection, None)
        except ConnectionError:
            return  # the parent has closed its end
        signal.setitimer(signal.ITIMER_REAL, seconds)
        verdict = _judge(verifier, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.sendall(pack(pack_verdict(verdict)))


def _judge(verifier: Verifier, request: dict[str, Any]) -> Verdict:
    reply, truth, before = (
        unpack_observation(request[name]) for name in ("reply", "truth", "before")
    )
    try:
        return attempt(verifier, reply=reply, truth=truth, before=before)
    except SystemExit as error:
        return failure(type(verifier).__name__, error)


if __name__ == "__main__":
    main(int(sys.argv[1]))
