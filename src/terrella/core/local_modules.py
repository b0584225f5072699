"""Modules of a user: in the folder where a command is run, or installed, by dotted path.

import_local("elevator")  ->  the module, or None when there is none of that name
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_local(name: str) -> ModuleType | None:
    """Import it with the current folder on the path; an error *inside* it is the user's to see."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    if not all(part.isidentifier() for part in name.split(".")) or not _exists(name):
        return None
    return importlib.import_module(name)


def _exists(name: str) -> bool:
    """`find_spec` of a dotted name imports the parents: each is looked for first."""
    parent = name.rpartition(".")[0]
    if parent and not (_exists(parent) and hasattr(importlib.import_module(parent), "__path__")):
        return False
    return importlib.util.find_spec(name) is not None
