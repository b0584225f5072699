"""Classes that are built from a config, and the registry by which a file may name them.

A class is known by being defined. A name in a file is looked up among the classes that are defined
so far; a module is imported for it only if it is one of terrella's own that may hold configs.
    find_class("terrella.worlds.counter:Counter")
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from terrella.core.errors import ConfigError

PACKAGES = frozenset(
    (
        "codecs",
        "commands",
        "core",
        "data",
        "engines",
        "evals",
        "models",
        "pipelines",
        "policies",
        "rollout",
        "serve",
        "trust",
        "verify",
        "world_models",
        "worlds",
    )
)
"""Packages of terrella with configs: only their modules are imported because a file names them."""
NAME = re.compile(r"[\w.]{1,200}:[\w.<>]{1,200}")
"""A module and a qualified name; `<locals>` is part of a class inside a function."""
_classes: dict[str, type[Any]] = {}


class Configurable:
    """Base of classes that are built from a nested `Config`."""

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Base of all configs: frozen, keyword-only, typed."""

        owner: ClassVar[type[Configurable]]

        def __init_subclass__(cls, **kwargs: Any) -> None:
            """Make the class known by its name."""
            super().__init_subclass__(**kwargs)
            _register(cls)

        def build(self) -> Any:
            """Make the object that this config describes."""
            return self.owner(self)

        def replace(self, **changes: Any) -> Self:
            """A copy with some fields changed."""
            return dataclasses.replace(self, **changes)

    config: Config
    reaches: ClassVar[str] = ""
    """What an instance starts or speaks to outside this process: Chromium, Java, an endpoint.

    A file that names such a class is refused unless the command line names the class as well.
    """

    def __init__(self, config: Config) -> None:
        """Keep the config; subclasses derive the rest from it."""
        self.config = config

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Tie a nested Config to its class; a class without one of its own gets an empty one."""
        super().__init_subclass__(**kwargs)
        _register(cls)
        if "Config" not in cls.__dict__:
            body = {
                "__doc__": f"Config of {cls.__name__}.",
                "__module__": cls.__module__,
                "__qualname__": f"{cls.__qualname__}.Config",
            }
            nested = type("Config", (cls.Config,), body)
            cls.Config = dataclass(frozen=True, kw_only=True)(nested)  # type: ignore[misc]
        cls.Config.owner = cls


def _register(cls: type[Any]) -> None:
    _classes[class_name(cls)] = cls


def class_name(cls: type[Any]) -> str:
    """The name by which a file names a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_class(name: Any) -> type[Configurable] | type[Configurable.Config]:
    """The registered class of this name; the error says why there is none."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError("class", f"expected 'module:Class', got {ascii(name)[:80]}")
    if name not in _classes:
        _import_own(name)
    if name not in _classes:
        raise ConfigError(name, "not found: no config class has this name")
    return _classes[name]


def _import_own(name: str) -> None:
    """Import the module of a class, if it is one of ours; no other is imported for a file."""
    module = name.split(":")[0]
    first, *rest = module.split(".")
    clean = all(part.isidentifier() and not part.startswith("_") for part in rest)
    if first != "terrella" or not rest or rest[0] not in PACKAGES or not clean:
        raise ConfigError(
            name,
            f"{module} is not imported, and a file may not import it",
            "name the class on the command line, or import its module before loading this config",
        )
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(name, f"not found: {error}") from error


def field_types(cls: type[Any], *, declarations: bool = False) -> dict[str, Any]:
    """The resolved type of each field of a dataclass, in order; with `Annotated` if asked."""
    hints = typing.get_type_hints(
        cls, localns={"Configurable": Configurable}, include_extras=declarations
    )
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}
