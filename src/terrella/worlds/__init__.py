"""One folder per world.

There is no registry to edit: a folder that holds a `World` subclass is found by its name.

Names are looked up here, then among installed packages (entry points `terrella.worlds`), then as a
module of the current folder (where `terrella new-world NAME` puts one) or as a dotted path.
    find_world("sokoban")
    world_config("sokoban:two_box", ["max_steps=20"]).build()
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import logging
import pkgutil
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from terrella.core.config_override import override
from terrella.core.errors import ConfigError
from terrella.core.local_modules import import_local
from terrella.core.world import World

logger = logging.getLogger("terrella")


def builtin_names() -> list[str]:
    """Names of the worlds that ship with the package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def find_world(name: str) -> type[World]:
    """Return the World class of that name; the error lists the known names."""
    if name in builtin_names():
        _say_what_is_hidden(name, Path.cwd())
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


@functools.cache
def _say_what_is_hidden(name: str, folder: Path) -> None:
    """A module of the user's with the name of a world that ships would be passed over silently."""
    own = [path for path in (folder / f"{name}.py", folder / name / "__init__.py") if path.exists()]
    if own and not own[0].is_relative_to(Path(__path__[0])):
        told = "%s is the world that ships with terrella, not %s: give that file another name"
        logger.warning(told, name, own[0])


def taken_name(name: str) -> str:
    """Why a world of the user's cannot have this name; nothing if it can."""
    if name in builtin_names():
        return "is a world that ships with terrella"
    if entry_points(group="terrella.worlds", name=name):
        return "is a world of an installed package"
    return "is a module of Python" if name in sys.stdlib_module_names else ""


def world_in(module: ModuleType) -> type[World]:
    """Return the one World class that a module (or one of its submodules) defines."""
    found = [value for value in vars(module).values() if _is_world_of(value, module.__name__)]
    worlds = [world for world in found if not inspect.isabstract(world)]
    if len(worlds) != 1:
        names = ", ".join(world.__name__ for world in worlds) or "none"
        raise ConfigError(
            module.__name__,
            f"must define exactly one World class, found {names}",
            "; ".join(_unwritten(world) for world in found if inspect.isabstract(world)),
        )
    return worlds[0]


def _unwritten(world: type[World]) -> str:
    """What a class still lacks, with the first line that says what it is for."""
    told = []
    for name in sorted(world.__abstractmethods__):
        what = (getattr(world, name).__doc__ or "").partition("\n")[0]
        told.append(f"`{name}` ({what.rstrip('.')})" if what else f"`{name}`")
    return f"write {', '.join(told)} in {world.__name__}"


def _is_world_of(value: object, module: str) -> TypeGuard[type[World]]:
    """Whether the value is a World class, defined in the module rather than imported."""
    if not isinstance(value, type) or not issubclass(value, World):
        return False
    return value.__module__ == module or value.__module__.startswith(f"{module}.")


def world_config(spec: str, assignments: Iterable[str] = ()) -> World.Config:
    """Return the config of `name` or `name:preset`, with `field=value` assignments applied."""
    name, _, preset = spec.partition(":")
    world = find_world(name)
    config = world.preset(preset) if preset else world.Config()
    if config is None:
        raise ConfigError(
            spec, "no such preset", f"presets of {name}: {', '.join(world.presets) or 'none'}"
        )
    assert isinstance(config, World.Config)
    return override(config, assignments)
