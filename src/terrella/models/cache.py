"""Cache of converted weights: one folder per user, files that are complete or absent.

cached_tensors("lpips-alex", make)    # {"name": tensor, ...}; `make` runs on first use only
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor


def cache_folder() -> Path:
    """$TERRELLA_CACHE, or `terrella` in the user's cache folder."""
    chosen = os.environ.get("TERRELLA_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "terrella"


def cached_tensors(name: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Load the tensors of that name; `make` converts them on first use.

    The file appears by rename, so that readers never see an incomplete one.
    """
    path = cache_folder() / f"{name}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        save_file({key: tensor.contiguous() for key, tensor in make().items()}, fresh)
        fresh.replace(path)
    return dict(load_file(path))
