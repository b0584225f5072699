"""Recipes: functions that return whole configs, found by name; with the command, hardware, time and numbers to expect.

find_recipe("tiny_counter")() -> Rlvr.Config(...)
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError

Recipe = Callable[[], Configurable.Config]


def all_recipes() -> dict[str, Recipe]:
    """Every public function of every module here and in the folders below, by name."""
    found: dict[str, Recipe] = {}
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        loaded = importlib.import_module(module.name)
        functions = inspect.getmembers(loaded, inspect.isfunction)
        found |= {name: f for name, f in functions if f.__module__ == module.name and not name.startswith("_")}
    return found


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; the error lists what there is."""
    known = all_recipes()
    if name not in known:
        raise ConfigError(name, "no such recipe", f"known: {', '.join(sorted(known))}")
    return known[name]
