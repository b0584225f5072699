"""Cache of converted weights: one folder per user, files that are complete or absent.

cached_tensors("lpips-alex", make)    # {"name": tensor, ...}; `make` runs on first use only
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from terrella.core.errors import StoreError
from terrella.core.files import locked
from terrella.core.integrity import read_hashed, write_hashed

logger = logging.getLogger("terrella")


def cache_folder() -> Path:
    """$TERRELLA_CACHE, or `terrella` in the user's cache folder."""
    chosen = os.environ.get("TERRELLA_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "terrella"


def cached_tensors(name: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Load the tensors of that name; `make` converts them on first use, and again if damaged."""
    path = cache_folder() / f"{name}.safetensors"
    try:
        return dict(load(read_hashed(path)))
    except StoreError as error:
        if path.exists():
            logger.warning("%s %s: converted again", path, error.what)
    with locked(path.parent, wait=True):
        data = save({key: tensor.contiguous() for key, tensor in make().items()})
        write_hashed(path, data)
    return dict(load(data))
