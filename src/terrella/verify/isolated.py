"""A verifier in a process of its own: a hard time-out, a memory limit, and no way to take the run down with it.

`Isolated` starts one child when it is first asked, and speaks length-prefixed JSON with it over a private socket: what
the inner verifier prints cannot reach the protocol. A child that hangs, dies or runs out of memory costs a masked
verdict with its reason, never a zero; the next request starts a new child.
    verifier = Isolated.Config(inner=StateDiff.Config(), timeout=2.0).build()
    with verifier: verdict = verifier.verify(reply, truth, before)
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from terrella.core.config import Configurable, dump
from terrella.core.errors import ConfigError, VerifierError
from terrella.core.types import Observation, Status, Verdict
from terrella.verify.wire import message_from, pack, pack_observation, unpack_verdict

START_SECONDS = 60.0
"""How long a child may take to import what it needs; this is not counted against a reply."""


class Isolated(Configurable):
    """Runs another verifier in a child process. Threads may share it; they take turns."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Which verifier, and what it may spend on one reply."""

        inner: Configurable.Config
        timeout: float = 5.0
        """Seconds for one verdict."""
        memory_mb: int = 1024
        """Address space beyond what the child has mapped when it is ready."""
        imports: tuple[str, ...] = ()
        """Modules that the child imports first: where `inner` is your own class, the module that defines it."""

        def __post_init__(self) -> None:
            """Refuse limits that nothing can keep."""
            if self.timeout <= 0:
                raise ConfigError("timeout", f"must be positive, not {self.timeout}")
            if self.memory_mb < 1:
                raise ConfigError("memory_mb", f"must be at least 1, not {self.memory_mb}")

    config: Config

    def __init__(self, config: Config) -> None:
        """Start nothing yet."""
        super().__init__(config)
        self._lock = threading.Lock()
        self._child: Child | None = None

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """The inner verifier's verdict, or a masked one that says how the child failed."""
        parts = {"reply": reply, "truth": truth, "before": before}
        request = pack({name: pack_observation(observation) for name, observation in parts.items()})
        with self._lock:
            if self._child is None or self._child.owner != os.getpid():  # a forked process needs a child of its own
                self._child = Child(self.config)
            return self._ask(self._child, request)

    def _ask(self, child: Child, request: bytes) -> Verdict:
        name = self.config.inner.owner.__name__
        try:
            return unpack_verdict(child.ask(request, self.config.timeout))
        except TimeoutError:
            self._drop(child)
            return Verdict.failed(Status.TIMEOUT, f"{name} did not answer within {self.config.timeout:g} s")
        except (OSError, ValueError, KeyError, TypeError) as error:  # it died, or what it wrote is no verdict
            code = self._drop(child)
            return Verdict.failed(Status.ERROR, f"the process of {name} failed (code {code}): {type(error).__name__}")

    def _drop(self, child: Child) -> int:
        self._child = None
        return child.stop()

    def close(self) -> None:
        """End the child and wait for it. The next request would start another."""
        with self._lock:
            if self._child is not None:
                self._drop(self._child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Child:
    """One child process and the socket to it."""

    def __init__(self, config: Isolated.Config) -> None:
        """Start it and wait until it has built its verifier."""
        self.owner = os.getpid()
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "terrella.verify.isolated_child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()], env=_environment(),
                start_new_session=True,
            )  # fmt: skip
        # Runs when this object is collected or at exit, whichever is first; `stop` runs it by hand.
        self._finalizer = weakref.finalize(self, _end, self.process, self.socket, self.owner)
        self._set_up(config)

    def _set_up(self, config: Isolated.Config) -> None:
        limits = {"timeout": config.timeout, "memory_mb": config.memory_mb}
        hello = {"config": dump(config.inner), "imports": list(config.imports), **limits}
        try:
            answer = self.ask(pack(hello), START_SECONDS)
        except (OSError, ValueError) as error:
            raise VerifierError(
                config.inner.owner.__name__, f"its process ended with code {self.stop()} before it was ready"
            ) from error
        if answer.get("ready") is not True:
            self.stop()
            remedy = "name the module that defines it in `imports`; a class of the main script cannot be reached"
            raise VerifierError(config.inner.owner.__name__, f"its process cannot build it: {answer}", remedy)

    def ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        """Send one message and wait for the answer; TimeoutError when either takes too long."""
        deadline = time.monotonic() + seconds
        self.socket.settimeout(seconds)
        self.socket.sendall(request)
        return message_from(self.socket, deadline)

    def stop(self) -> int:
        """End the process with all it started, wait for it, and return its exit code (-9 when we ended it)."""
        self._finalizer()
        return self.process.returncode


def _environment() -> dict[str, str]:
    """Ours, with the import path of this process: the child must find the same modules, and nothing else."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return {"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}


def _end(process: subprocess.Popen[bytes], connection: socket.socket, owner: int) -> None:
    connection.close()
    if os.getpid() != owner:  # a fork of the process that started it: not ours to end
        return
    # The whole group, for a verifier may have started something; and before we wait, while the number is still taken.
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended already
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
