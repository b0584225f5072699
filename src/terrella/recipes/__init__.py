"""Recipes: functions that return whole configs, found by name; with the command, hardware, time and numbers to expect.

Yours: a function of a module in the folder where you run `terrella`, or of an installed one, by dotted path.
    find_recipe("tiny_counter")() -> Rlvr.Config(...);  find_recipe("elevator.elevator_model")
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.local_modules import import_local

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
    recipe = known.get(name) or _local_recipe(name)
    if recipe is None:
        yours = "or yours as module.function, in this folder or installed"
        raise ConfigError(name, "no such recipe", f"known: {', '.join(sorted(known))}; {yours}")
    return recipe


def _local_recipe(name: str) -> Recipe | None:
    module_name, dot, function = name.rpartition(".")
    module = import_local(module_name) if dot else None
    found = getattr(module, function, None)
    return found if inspect.isfunction(found) else None
