"""`terrella sites up|reset|down|status`: manage the web applications of the mini-arena.

They are installed from hash-locked packages into virtual environments below the cache folder (a few
minutes, once) and listen on loopback only. `reset` restores their initial state in well under a
second.
    run("up", ())
    run("reset", ())
"""

from __future__ import annotations

import time
from typing import Literal

from terrella.show.progress import show_lines, show_metrics
from terrella.worlds.webarena.arena import Arena, sites_named
from terrella.worlds.webarena.turns import ArenaTurn

Verb = Literal["up", "reset", "down", "status"]


def run(verb: Verb, names: tuple[str, ...]) -> None:
    """Carry out the command for the named sites, all unless given; then show their state."""
    sites = sites_named(names)
    arena = Arena()
    began = time.monotonic()
    if verb == "up":
        with show_lines("sites up") as report:
            arena.up(names, report)
    elif verb == "reset":
        turn = ArenaTurn(arena.folder)
        turn.take(seconds=0.0)  # not in the middle of an episode
        arena.reset(names)
        turn.leave()
    elif verb == "down":
        arena.down(names)
    seconds = time.monotonic() - began
    running = arena.running()
    rows = []
    for site in sites:
        server = running.get(site.name)
        rows.append((site.name, f"http://127.0.0.1:{server.port}" if server else "down"))
    show_metrics(f"sites {verb}: {seconds:.2f} s", rows)
