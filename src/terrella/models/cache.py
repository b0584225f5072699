"""Where converted weights are kept: one folder per user, files that are whole or absent.

keep_tensors("lpips-alex", make)   # {"name": tensor, ...}: read from the cache, made and kept on first use
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor


def cache_folder() -> Path:
    """$TERRELLA_CACHE, else the user's cache folder."""
    base = (
        os.environ.get("TERRELLA_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "terrella"
    )
    return Path(base)


def keep_tensors(name: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of that name, converted once; it appears by rename, so a reader never meets half a file."""
    path = cache_folder() / f"{name}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        save_file({key: tensor.contiguous() for key, tensor in make().items()}, fresh)
        fresh.replace(path)
    return dict(load_file(path))
