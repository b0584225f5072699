"""Misbehaving verifiers for the tests of isolation; the child process imports this module."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from terrella.core.config import Configurable
from terrella.core.types import Frames, Verdict, show_text


class Hostile(Configurable):
    """Runs the method named by the reply; scores any other reply honestly."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        note: str = ""

    def verify(self, reply, truth, before):
        if isinstance(reply, Frames):
            return Verdict.of(float(reply == truth), mean=float(reply.array.mean()))
        text = show_text(reply)
        action = getattr(self, text, None) if text.isidentifier() else None
        if action:
            return action()
        return Verdict.of(float(reply == truth), evidence=f"{os.getpid()} {text}", half=0.5)

    def sleep(self):
        time.sleep(60)

    def spin(self):
        while True:
            pass

    def spawn_and_sleep(self):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(self.config.note).write_text(str(child.pid))
        time.sleep(60)

    def stumble(self):
        raise LookupError("no such thing")

    def leave(self):
        sys.exit(3)

    def vanish(self):
        os._exit(3)

    def crash(self):
        os.abort()

    def hog(self):
        return Verdict.of(float(len(bytearray(4 * 2**30)) > 0))

    def chatter(self):
        print("{}" * 10_000)  # noqa: T201
        os.write(1, b"\0\0\0\2{}" * 1000)
        return Verdict.of(1.0)

    def read(self):
        return Verdict.of(float(sys.stdin.read() == ""))

    def number(self):
        return 1.0

    def nan(self):
        return Verdict.of(float("nan"))


class Unbuildable(Configurable):
    def __init__(self, config):
        raise RuntimeError("no licence")
