"""One event loop for all world models: their samplers are asynchronous, `predict` is not.

sampled = run_in_background(sampler.sample(request)).result()
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_background(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the event loop that all world models share."""
    return asyncio.run_coroutine_threadsafe(work, _background_loop())


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    """One event loop in its own thread.

    A world may be stepped from inside another event loop, or from many threads.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="world-model", daemon=True).start()
    return loop
