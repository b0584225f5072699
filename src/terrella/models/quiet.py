"""Saving and loading without progress bars of transformers, which would break into our display.

Downloads keep theirs.
    with without_bars(): model.save_pretrained(folder)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers.utils import logging


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Turn the bars off, and on again if they were on."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
