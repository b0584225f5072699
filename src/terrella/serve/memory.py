"""Gives memory back to the system after a burst.

Python and the C library keep what was freed for later, so a server that was flooded once would stay
large. When the process has grown, garbage is collected and free memory is returned.
    task = asyncio.create_task(keep_giving_back())
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
from pathlib import Path

PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 20.0
GROWTH = 1.03
"""Memory is given back when this much more is in use than at the smallest."""
STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory of this process that is in use now; 0 where the system does not say."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:  # not Linux
        return 0
    return pages * resource.getpagesize()


def give_back() -> None:
    """Collect garbage, and return free memory to the system where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others do not
    if trim is not None:
        trim(0)


async def keep_giving_back() -> None:
    """Look every few seconds; the task is cancelled when the server stops.

    What is compared is the smallest size so far: a size in the middle of a flood says nothing.
    Memory that is in use stays in use, so the pause grows while nothing can be given back.
    """
    smallest = resident_bytes()
    pause = PAUSE_SECONDS
    while True:
        await asyncio.sleep(pause)
        before = resident_bytes()
        if before > GROWTH * smallest:
            give_back()
        after = resident_bytes()
        smallest = min(smallest, after)
        pause = PAUSE_SECONDS if after * GROWTH < before else min(2 * pause, LONGEST_PAUSE_SECONDS)
