"""Run a verifier in a child process, with a hard time-out and a memory limit.

`Isolated` starts one child on the first request and exchanges length-prefixed JSON with it over a
private socket, so the output of the inner verifier cannot corrupt the protocol. A child that hangs,
dies or runs out of memory yields a masked verdict with the reason, never a zero; the next request
starts a new child.
    verifier = Isolated.Config(inner=StateDiff.Config(), timeout=2.0).build()
    with verifier:
        verdict = verifier.verify(reply, truth, before)
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
from typing import Any, ClassVar, Self

from terrella.core.config import Configurable, Local, dump
from terrella.core.errors import ConfigError, VerifierError
from terrella.core.types import Observation, Status, Verdict
from terrella.verify.wire import pack, pack_observation, read_message, unpack_verdict

START_SECONDS = 60.0
"""Time limit for the start of a child (its imports); not counted against a reply."""


class Isolated(Configurable):
    """Runs another verifier in a child process. Thread-safe: requests are serialised."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """The inner verifier and its limits."""

        inner: Configurable.Config
        timeout: float = 5.0
        """Seconds for one verdict."""
        memory_mb: int = 1024
        """Address space in addition to what the child has mapped when it is ready."""
        imports: Local[tuple[str, ...]] = ()
        """Modules that the child imports first.

        If `inner` is a class of your own, name the module that defines it.
        """

        def __post_init__(self) -> None:
            if self.timeout <= 0:
                raise ConfigError("timeout", f"must be positive, not {self.timeout}")
            if self.memory_mb < 1:
                raise ConfigError("memory_mb", f"must be at least 1, not {self.memory_mb}")

    config: Config
    reaches: ClassVar[str] = "a child process"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._lock = threading.Lock()
        self._child: Child | None = None

    def verify(self, reply: Observation, truth: Observation, before: Observation) -> Verdict:
        """The inner verifier's verdict, or a masked verdict that says how the child failed."""
        parts = {"reply": reply, "truth": truth, "before": before}
        request = pack({name: pack_observation(observation) for name, observation in parts.items()})
        with self._lock:
            # A forked process needs its own child.
            if self._child is None or self._child.owner != os.getpid():
                self._child = Child(self.config)
            return self._ask(self._child, request)

    def _ask(self, child: Child, request: bytes) -> Verdict:
        name = self.config.inner.owner.__name__
        try:
            return unpack_verdict(child.ask(request, self.config.timeout))
        except TimeoutError:
            self._drop(child)
            return Verdict.failed(
                Status.TIMEOUT, f"{name} did not answer within {self.config.timeout:g} s"
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            # The child died, or what it sent is not a verdict.
            code = self._drop(child)
            return Verdict.failed(
                Status.ERROR, f"the process of {name} failed (code {code}): {type(error).__name__}"
            )

    def _drop(self, child: Child) -> int:
        self._child = None
        return child.stop()

    def close(self) -> None:
        """End the child and wait for it. The next request starts a new one."""
        with self._lock:
            if self._child is not None:
                self._drop(self._child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Child:
    """One child process and the socket to it."""

    def __init__(self, config: Isolated.Config) -> None:
        """Start the process and wait until it has built its verifier."""
        self.owner = os.getpid()
        self.socket, child_socket = socket.socketpair()
        descriptor = child_socket.fileno()
        module = "terrella.verify.isolated_child"
        with child_socket:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(descriptor)],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[descriptor],
                env=_environment(),
                start_new_session=True,
            )
        # Runs when this object is collected or at exit, whichever is first; `stop` calls it too.
        self._finalizer = weakref.finalize(self, _end, self.process, self.socket, self.owner)
        self._set_up(config)

    def _set_up(self, config: Isolated.Config) -> None:
        limits = {"timeout": config.timeout, "memory_mb": config.memory_mb}
        setup = {"config": dump(config.inner), "imports": list(config.imports), **limits}
        try:
            answer = self.ask(pack(setup), START_SECONDS)
        except (OSError, ValueError) as error:
            raise VerifierError(
                config.inner.owner.__name__,
                f"its child process ended with code {self.stop()} before it was ready",
            ) from error
        if answer.get("ready") is not True:
            self.stop()
            raise VerifierError(
                config.inner.owner.__name__,
                f"its child process cannot build it: {answer}",
                "name the module that defines it in `imports`; "
                "a class of the main script cannot be imported",
            )

    def ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        """Send one message and wait for the answer.

        Raises TimeoutError if both together take longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        self.socket.settimeout(seconds)
        self.socket.sendall(request)
        return read_message(self.socket, deadline)

    def stop(self) -> int:
        """Kill the process with all it started, wait for it, and return its exit code.

        The code is -9 when the process was still running.
        """
        self._finalizer()
        return self.process.returncode


def _environment() -> dict[str, str]:
    """The environment of this process, with its import path as PYTHONPATH.

    The child must find the same modules, and nothing else.
    """
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return {"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}


def _end(process: subprocess.Popen[bytes], connection: socket.socket, owner: int) -> None:
    connection.close()
    if os.getpid() != owner:  # this is a fork of the process that started the child
        return
    # Kill the whole group, because a verifier may have started processes; and before `wait`, while
    # the process id cannot have been reused.
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has already ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
