"""Typed configs: a config builds its class, can be written to disk, and refuses typos.

Nest a frozen dataclass `Config` in a class that derives from `Configurable`; `build()` makes an
instance of the class. Settings that belong to no class derive from `Configurable.Config` directly.
    config = FrozenLake.Config(size=6)
    assert load(dump(config)) == config
    override(config, ["size=8", "view=coordinates"]).build()
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin

from terrella.core.errors import ConfigError

C = TypeVar("C", bound="Configurable.Config")
R = TypeVar("R")


class Configurable:
    """Base of classes that are built from a nested `Config`."""

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Base of all configs: frozen, keyword-only, typed."""

        owner: ClassVar[type[Configurable]]

        def build(self) -> Any:
            """Make the object that this config describes."""
            return self.owner(self)

        def replace(self, **changes: Any) -> Self:
            """A copy with some fields changed."""
            return dataclasses.replace(self, **changes)

    config: Config

    def __init__(self, config: Config) -> None:
        """Keep the config; subclasses derive the rest from it."""
        self.config = config

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Tie a nested Config to its class; a class without one of its own gets an empty one."""
        super().__init_subclass__(**kwargs)
        if "Config" not in cls.__dict__:
            body = {"__doc__": f"Config of {cls.__name__}.", "__module__": cls.__module__}
            nested = type("Config", (cls.Config,), body)
            cls.Config = dataclass(frozen=True, kw_only=True)(nested)  # type: ignore[misc]
            cls.Config.__qualname__ = f"{cls.__qualname__}.Config"
        cls.Config.owner = cls


def dump(config: Configurable.Config) -> dict[str, Any]:
    """The config as plain JSON values, with the class that owns it."""
    cls = type(config)
    named: type[Any] = getattr(cls, "owner", cls)  # engine settings have no owner
    fields = {f.name: _dump_value(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return {"class": f"{named.__module__}:{named.__qualname__}", **fields}


def _dump_value(value: Any) -> Any:
    if isinstance(value, Configurable.Config):
        return dump(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_dump_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _dump_value(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        type(value).__name__, "this type cannot be written to JSON", "use JSON types, tuples, enums"
    )


def load(data: Mapping[str, Any]) -> Any:
    """The config that `dump` wrote. Unknown keys, wrong types and unknown classes fail."""
    _expect(isinstance(data, Mapping), data, "config", "a mapping")
    named = _find_class(data)
    values = {key: value for key, value in data.items() if key != "class"}
    cls = named.Config if issubclass(named, Configurable) else named
    return _load_fields(cls, values, where=named.__qualname__)


def _find_class(data: Mapping[str, Any]) -> type[Configurable] | type[Configurable.Config]:
    path = data.get("class")
    if not isinstance(path, str) or path.count(":") != 1:
        raise ConfigError("class", f"expected 'module:Class', got {path!r}")
    module_name, qualname = path.split(":")
    # A config file is untrusted: it may name our classes and what the user has already imported,
    # not import more.
    if module_name not in sys.modules and not module_name.startswith("terrella."):
        raise ConfigError(
            path,
            f"{module_name} is not imported",
            f"import {module_name} before loading this config",
        )
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(path, f"not found: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Configurable | Configurable.Config)):
        raise ConfigError(path, "is not a Configurable class")
    return found


def _load_fields(cls: type[R], values: Mapping[str, Any], where: str) -> R:
    hints = field_types(cls)
    for key in values:
        if key not in hints:
            raise ConfigError(
                f"{where}.{key}", "unknown key", f"known keys: {', '.join(hints) or 'none'}"
            )
    loaded = {key: _convert(value, hints[key], f"{where}.{key}") for key, value in values.items()}
    try:
        return cls(**loaded)
    except TypeError as error:  # a required field is missing
        raise ConfigError(where, str(error)) from error


def field_types(cls: type[Any]) -> dict[str, Any]:
    """The resolved type of each field of a dataclass, in order."""
    hints = typing.get_type_hints(cls, localns={"Configurable": Configurable})
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def record_from_json(cls: type[R], data: Any) -> R:
    """A frozen dataclass from JSON values, with the same strictness as configs."""
    return cast(R, _convert(data, cls, cls.__name__))


def _convert(value: Any, hint: Any, where: str) -> Any:
    """`value` (JSON) as `hint`, or a ConfigError that says what was expected."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, args, where)
    if origin is Literal:
        return _pick(value, args, where)
    if origin is tuple:
        return _convert_tuple(value, args, where)
    if origin in (list, set, frozenset):
        items = _convert_tuple(value, (args[0], ...), where)
        made = origin(items)
        _expect(len(made) == len(items), value, where, "different values")
        return made
    if origin in (dict, Mapping) or origin is typing.get_origin(Mapping[str, int]):
        _expect(isinstance(value, Mapping), value, where, "a mapping")
        return {key: _convert(item, args[1], f"{where}.{key}") for key, item in value.items()}
    return _convert_plain(value, hint, where)


def _convert_plain(value: Any, hint: Any, where: str) -> Any:
    if hint is None or hint is type(None):
        return _expect(value is None, value, where, "null")
    if isinstance(hint, type) and issubclass(hint, Configurable.Config):
        if isinstance(value, hint):
            return value
        _expect(isinstance(value, Mapping), value, where, f"a {hint.__qualname__}")
        made = load(value) if "class" in value else _load_fields(hint, value, where)
        return _expect(isinstance(made, hint), made, where, f"a {hint.__qualname__}")
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        _expect(isinstance(value, Mapping), value, where, f"a {hint.__name__}")
        return _load_fields(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(_pick(value, [member.value for member in hint], where))
    if hint is Path:
        return Path(_expect(isinstance(value, str | Path), value, where, "a path"))
    if hint is float:
        return float(
            _expect(
                isinstance(value, int | float) and not isinstance(value, bool),
                value,
                where,
                "a number",
            )
        )
    exact = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    return _expect(exact, value, where, f"a value of type {hint.__name__}")


def _convert_union(value: Any, options: tuple[Any, ...], where: str) -> Any:
    failures: list[str] = []
    for option in options:
        try:
            return _convert(value, option, where)
        except ConfigError as error:
            failures.append(error.what)
    raise ConfigError(where, " and ".join(failures))


def _convert_tuple(value: Any, args: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    _expect(isinstance(value, list | tuple), value, where, "a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_convert(item, args[0], f"{where}[{i}]") for i, item in enumerate(value))
    _expect(len(value) == len(args), value, where, f"{len(args)} values")
    return tuple(
        _convert(v, t, f"{where}[{i}]") for i, (v, t) in enumerate(zip(value, args, strict=True))
    )


def _pick(value: Any, options: Sequence[Any], where: str) -> Any:
    """The option that equals the value; in a config, true is not 1."""
    for option in options:
        if value == option and isinstance(value, bool) == isinstance(option, bool):
            return option
    raise ConfigError(where, f"expected one of {', '.join(map(repr, options))}, got {value!r}")


def _expect(holds: bool, value: Any, where: str, wanted: str) -> Any:
    if not holds:
        raise ConfigError(where, f"expected {wanted}, got {value!r}")
    return value


Named = Mapping[type[Any], Callable[[str], Any]]
"""Functions that make a nested config from a name, by the type of the field."""


def override(config: C, assignments: Iterable[str], *, named: Named | None = None) -> C:
    """Apply `a.b=c` assignments; the text is read as the field's type, and an unknown key fails.

    `named` gives nested configs by name: `{World.Config: world_config}` allows `world=sokoban`.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ConfigError(assignment, "is not an assignment", "write --set some.field=value")
        config = _override_one(config, path.strip().split("."), text.strip(), path, named or {})
    return config


def _override_one(config: C, keys: list[str], text: str, where: str, named: Named) -> C:
    name, *rest = keys
    hints = field_types(type(config))
    if name not in hints:
        if hasattr(config, "open_key"):  # this config passes unknown keys to another schema
            return cast(C, config.open_key(".".join(keys), text))
        raise ConfigError(where, f"unknown key {name!r}", known_names(name, hints))
    if not rest:
        return config.replace(**{name: _parse_field(text, hints[name], where, named)})
    current = getattr(config, name)
    if isinstance(current, Configurable.Config):
        return config.replace(**{name: _override_one(current, rest, text, where, named)})
    raise ConfigError(where, f"{name!r} has no fields of its own")


def _parse_field(text: str, hint: Any, where: str, named: Named) -> Any:
    """A field's value from text; a nested config may be given by name."""
    for kind, make in named.items():
        if isinstance(hint, type) and issubclass(hint, kind):
            value = make(text)
            expected = hint.__qualname__.removesuffix(".Config")
            _expect(isinstance(value, hint), text, where, f"a config of {expected}")
            return value
    return _parse(text, hint, where)


def known_names(wrong: str, known: Iterable[str]) -> str:
    """A remedy for a mistyped name: the nearest names, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(wrong, names, n=3)
    listed = f"known keys: {', '.join(names) or 'none'}"
    return f"did you mean {' or '.join(near)}? {listed}" if near else listed


def _parse(text: str, hint: Any, where: str) -> Any:
    """Command-line text as `hint`: numbers, true/false, none, comma lists; else the text itself."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        # None first: a text or a path would take the word "none" for itself.
        for option in sorted(args, key=lambda option: option is not type(None)):
            try:
                return _parse(text, option, where)
            except ConfigError:
                # The next member of the union may fit; the raise below says when none does
                continue
        raise ConfigError(where, f"{text!r} fits none of {hint}")
    if origin is tuple:
        items = [item.strip() for item in text.strip("()[]").split(",") if item.strip()]
        kinds = [args[0]] * len(items) if args[-1] is Ellipsis else list(args)
        _expect(len(kinds) == len(items), text, where, f"{len(kinds)} values")
        return tuple(_parse(item, kind, where) for item, kind in zip(items, kinds, strict=True))
    return _convert(_read_scalar(text, hint), hint, where)


def _read_scalar(text: str, hint: Any) -> Any:
    if hint is type(None):
        return None if text.lower() in ("none", "null") else text
    if hint is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if get_origin(hint) is Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        options = get_args(hint) or [member.value for member in hint]
        return next((option for option in options if str(option) == text), text)
    if hint in (int, float):
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                # Not this kind of number; left as text, `_convert` then says what was expected
                continue
    return text
