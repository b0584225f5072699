"""One folder per world.

There is no registry to edit: a folder that holds a `World` subclass is found by its name.

Names are looked up here, then among installed packages (entry points `terrella.worlds`), then as a
module of the current folder (where `terrella new-world NAME` puts one) or as a dotted path.
    find_world("sokoban")
    world_config("sokoban:two_box", ["max_steps=20"]).build()
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from importlib.metadata import entry_points
from types import ModuleType
from typing import TypeGuard

from terrella.core.config import override
from terrella.core.errors import ConfigError
from terrella.core.local_modules import import_local
from terrella.core.world import World


def builtin_names() -> list[str]:
    """Names of the worlds that ship with the package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def find_world(name: str) -> type[World]:
    """Return the World class of that name; the error lists the known names."""
    if name in builtin_names():
        return world_in(importlib.import_module(f"{__name__}.{name}"))
    for point in entry_points(group="terrella.worlds", name=name):
        return world_in(importlib.import_module(point.module))
    module = import_local(name)
    if module is None:
        near = difflib.get_close_matches(name, builtin_names(), n=2)
        start = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(
            name,
            "no such world",
            f"{start}use one of {', '.join(builtin_names())}; or a module of the current folder, "
            "or a dotted path",
        )
    return world_in(module)


def world_in(module: ModuleType) -> type[World]:
    """Return the one World class that a module (or one of its submodules) defines."""
    worlds = [value for value in vars(module).values() if _is_world_of(value, module.__name__)]
    if len(worlds) != 1:
        names = ", ".join(world.__name__ for world in worlds) or "none"
        raise ConfigError(module.__name__, f"must define exactly one World class, found {names}")
    return worlds[0]


def _is_world_of(value: object, module: str) -> TypeGuard[type[World]]:
    """Whether the value is a concrete World class, defined in the module rather than imported."""
    if not isinstance(value, type) or not issubclass(value, World) or inspect.isabstract(value):
        return False
    return value.__module__ == module or value.__module__.startswith(f"{module}.")


def world_config(spec: str, assignments: Iterable[str] = ()) -> World.Config:
    """Return the config of `name` or `name:preset`, with `field=value` assignments applied."""
    name, _, preset = spec.partition(":")
    world = find_world(name)
    if preset and preset not in world.presets:
        raise ConfigError(
            spec, "no such preset", f"presets of {name}: {', '.join(world.presets) or 'none'}"
        )
    config = world.presets[preset] if preset else world.Config()
    assert isinstance(config, World.Config)
    return override(config, assignments)
