"""`terrella sites up|reset|down|status`: the web applications that the mini-arena's tasks are about.

They are installed from PyPI into virtual environments below the cache folder (a few minutes, once), listen on loopback
only, and are put back to their first state by `reset` in well under a second.
    run("up", ()); run("reset", ())
"""

from __future__ import annotations

import time
from typing import Literal

from terrella.show.progress import show_figures
from terrella.worlds.webarena.arena import SITES, Arena

Verb = Literal["up", "reset", "down", "status"]


def run(verb: Verb, names: tuple[str, ...]) -> None:
    """Do it and say what is running."""
    arena, began = Arena(), time.monotonic()
    if verb == "up":
        arena.up(names)
    elif verb == "reset":
        arena.reset()
    elif verb == "down":
        arena.down()
    seconds, up = time.monotonic() - began, arena.running()
    rows = [(site.name, f"http://127.0.0.1:{up[site.name].port}" if site.name in up else "down") for site in SITES]
    show_figures(f"sites {verb}: {seconds:.2f} s", rows)
