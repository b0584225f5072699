"""`terrella sites up|reset|down|status`: manage the web applications of the mini-arena.

They are installed from hash-locked packages into virtual environments below the cache folder (a few
minutes, once) and listen on loopback only. `reset` restores their initial state in well under a
second.
    run("up", ())
    run("reset", ())
"""

from __future__ import annotations

import logging
import time
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from terrella.show.progress import show_metrics
from terrella.worlds.webarena.arena import SITES, Arena

logger = logging.getLogger("terrella")
Verb = Literal["up", "reset", "down", "status"]


def _show(line: str, status: Status) -> None:
    """The newest line in a terminal; a log line elsewhere."""
    if line:
        status.update(escape(line[:100]))
        if not status.console.is_terminal:
            logger.info("%s", line)


def run(verb: Verb, names: tuple[str, ...]) -> None:
    """Carry out the command, then show which sites are running."""
    arena = Arena()
    began = time.monotonic()
    if verb == "up":
        with Console(stderr=True).status("sites up") as status:
            arena.up(names, report=lambda line: _show(line, status))
    elif verb == "reset":
        arena.reset()
    elif verb == "down":
        arena.down()
    seconds = time.monotonic() - began
    running = arena.running()
    rows = []
    for site in SITES:
        server = running.get(site.name)
        rows.append((site.name, f"http://127.0.0.1:{server.port}" if server else "down"))
    show_metrics(f"sites {verb}: {seconds:.2f} s", rows)
