"""One folder per world. A folder that holds a `World` subclass *is* the registry: nothing to edit elsewhere.

Worlds are found by name here, then among installed packages (entry points `terrella.worlds`), then as a
module of the current folder or a dotted path: that is where `terrella new-world NAME` puts one.
    find_world("sokoban"); world_config("sokoban:two_box", ["max_steps=20"]).build()
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from importlib.metadata import entry_points
from types import ModuleType

from terrella.core.config import override
from terrella.core.errors import ConfigError
from terrella.core.local_modules import import_local
from terrella.core.world import World


def builtin_names() -> list[str]:
    """Names of the worlds that ship with the package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def find_world(name: str) -> type[World]:
    """The World class of that name; the error lists what there is."""
    if name in builtin_names():
        return world_in(importlib.import_module(f"{__name__}.{name}"))
    for point in entry_points(group="terrella.worlds", name=name):
        return world_in(importlib.import_module(point.module))
    module = import_local(name)
    if module is None:
        known = ", ".join(builtin_names())
        raise ConfigError(name, "no such world", f"known: {known}; or a module of this folder, or a dotted path")
    return world_in(module)


def world_in(module: ModuleType) -> type[World]:
    """The one World class that a module defines."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, World) and not inspect.isabstract(value)
        and (value.__module__ == module.__name__ or value.__module__.startswith(f"{module.__name__}."))
    ]  # fmt: skip
    if len(found) != 1:
        names = ", ".join(world.__name__ for world in found) or "none"
        raise ConfigError(module.__name__, f"must define exactly one World class, found {names}")
    return found[0]


def world_config(spec: str, assignments: Iterable[str] = ()) -> World.Config:
    """The config of `name` or `name:preset`, with `a=b` assignments applied."""
    name, _, preset = spec.partition(":")
    world = find_world(name)
    if preset and preset not in world.presets:
        raise ConfigError(spec, "no such preset", f"presets of {name}: {', '.join(world.presets) or 'none'}")
    config = world.presets[preset] if preset else world.Config()
    assert isinstance(config, World.Config)
    return override(config, assignments)
