"""Episodes on the mini-arena take turns: each resets the databases that the others write to.

The turn is a lock on a file in the arena's folder. It holds between the worlds of a process and
between processes, and ends with the process that has it.
    turn = ArenaTurn(arena.folder)
    turn.take()  # before the reset; waits until no other episode is played
    turn.leave()
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from io import TextIOWrapper
from pathlib import Path

from terrella.core.errors import WorldError

logger = logging.getLogger("terrella")

WAIT_SECONDS = 600.0
LOOK_SECONDS = 0.05
TELL_SECONDS = 2.0
"""A wait that is longer than this is logged, once for each world."""


class ArenaTurn:
    """The turn of one world. `leave` gives it back; so does the end of the world."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: TextIOWrapper | None = None
        self._told = False
        self._process = 0

    def take(self, seconds: float = WAIT_SECONDS) -> None:
        """Have the arena alone; a WorldError after so many seconds says who has it."""
        if self._file is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + seconds
        with contextlib.ExitStack() as stack:
            # Who waits is next: without this, a process that begins again at once starves others.
            following = stack.enter_context((self.folder / "next.lock").open("a+"))
            self._wait(following, until)
            file = (self.folder / "episode.lock").open("a+")
            try:
                self._wait(file, until)
            except BaseException:
                file.close()
                raise
        file.truncate(0)
        file.write(f"{os.getpid()} {threading.get_ident()}")
        file.flush()
        self._file, self._process = file, os.getpid()

    def _wait(self, file: TextIOWrapper, until: float) -> None:
        began = time.monotonic()
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            process, thread = self._holder()
            now = time.monotonic()
            if (process, thread) == (os.getpid(), threading.get_ident()):
                raise WorldError(
                    "webarena",
                    f"this thread has begun an episode on {self.folder} that is not over",
                    "play it to its end, or call `leave` or `close` of its world, then reset",
                )
            if now >= until:
                raise WorldError(
                    "webarena",
                    f"process {process} still plays an episode on the mini-arena {self.folder}",
                    "wait for it, or play on another arena: with TERRELLA_CACHE set to another "
                    "folder, `terrella sites up` makes one",
                )
            if not self._told and now - began > TELL_SECONDS:
                self._told = True
                logger.warning(
                    "episodes on the mini-arena take turns: waiting for process %d", process
                )
            time.sleep(LOOK_SECONDS)

    def _holder(self) -> tuple[int, int]:
        """Process and thread of the episode that is played; zeros while that is changing."""
        words = (self.folder / "episode.lock").read_text().split() or ["0", "0"]
        return (int(words[0]), int(words[1])) if len(words) == 2 else (0, 0)

    def leave(self) -> None:
        """Let the next episode begin."""
        file, self._file = self._file, None
        if file is None:
            return
        if os.getpid() == self._process:  # a fork has a copy of the file, not the turn
            file.truncate(0)
            fcntl.flock(file, fcntl.LOCK_UN)
        file.close()

    def __del__(self) -> None:
        """A world that is gone plays no episode."""
        self.leave()
