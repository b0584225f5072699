"""Recipes: functions that return whole configs, found by name.

A recipe of yours is a function in a module of the current folder, or of an installed package, named
by its dotted path. `@recipe` says what to expect; `terrella recipes` shows it.
    find_recipe("tiny_counter")() -> Rlvr.Config(...);  find_recipe("elevator.elevator_model")
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.known_names import near_names
from terrella.core.local_modules import import_local

Recipe = Callable[[], Configurable.Config]
R = TypeVar("R", bound=Callable[[], Any])


@dataclass(frozen=True, kw_only=True)
class RecipeInfo:
    """What a user wants to know before starting a recipe."""

    hardware: str
    time: str
    expect: str
    """The expected figure beside its baseline, or what the recipe is for."""
    on: str = "cpu"
    """The hardware as `--dry-run --on` takes it; a test plans the memory of every recipe on it."""


def recipe(*, hardware: str, time: str, expect: str, on: str = "cpu") -> Callable[[R], R]:
    """Attach what to expect to a recipe."""
    info = RecipeInfo(hardware=hardware, time=time, expect=expect, on=on)

    def attach(function: R) -> R:
        function.info = info  # type: ignore[attr-defined]
        return function

    return attach


def recipe_info(function: Recipe) -> RecipeInfo:
    """What to expect of a recipe; a recipe without `@recipe` says nothing."""
    unknown = RecipeInfo(hardware="?", time="?", expect="?")
    info: RecipeInfo = getattr(function, "info", unknown)
    return info


def all_recipes() -> dict[str, Recipe]:
    """Every public function of every module in this package, by name."""
    recipes: dict[str, Recipe] = {}
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        loaded = importlib.import_module(module.name)
        for name, function in inspect.getmembers(loaded, inspect.isfunction):
            if function.__module__ == module.name and not name.startswith("_"):
                recipes[name] = function
    return recipes


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; the error suggests the nearest ones."""
    recipes = all_recipes()
    found = recipes.get(name) or _local_recipe(name)
    if found is None:
        raise ConfigError(name, "no such recipe", _suggestion(name, list(recipes)))
    return found


def _suggestion(name: str, known: list[str]) -> str:
    return (
        f"{near_names(name, known)}`terrella recipes` lists them; a recipe of yours is named "
        "module.function, in this folder or installed"
    )


def _local_recipe(name: str) -> Recipe | None:
    module_name, dot, function_name = name.rpartition(".")
    module = import_local(module_name) if dot else None
    if module is None:
        return None
    functions = dict(inspect.getmembers(module, inspect.isfunction))
    if function_name not in functions:
        raise ConfigError(
            name,
            f"module {module_name} has no function {function_name}",
            near_names(function_name, list(functions)) or "name a function that returns a config",
        )
    return functions[function_name]
