"""Typed configs: a config builds its class, can be written to disk, and refuses typos.

Nest a frozen dataclass `Config` in a class that derives from `Configurable`; `build()` makes an
instance of the class. Settings that belong to no class derive from `Configurable.Config` directly.
    config = FrozenLake.Config(size=6)
    assert load(dump(config)) == config
    config.replace(size=8, view="coordinates").build()
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from terrella.core.configurable import Configurable, class_name, field_types, find_class
from terrella.core.errors import ConfigError
from terrella.core.field_origin import Local, Recorded, may_come_from_file

__all__ = (
    "Configurable",
    "Local",
    "Recorded",
    "dump",
    "field_types",
    "load",
    "own_value",
    "rebuild",
    "record_from_json",
)
logger = logging.getLogger("terrella")

C = TypeVar("C", bound="Configurable.Config")
R = TypeVar("R")
MAX_DEPTH = 24
"""Levels of nested configs in a file."""
MAX_SHOWN = 60
"""Characters of a value that a message shows."""


def dump(config: Configurable.Config) -> dict[str, Any]:
    """The config as plain JSON values, with the class that owns it."""
    cls = type(config)
    named: type[Any] = getattr(cls, "owner", cls)  # engine settings have no owner
    values = {f.name: _dump_field(config, f.name) for f in dataclasses.fields(config)}
    return {"class": class_name(named), **values}


def leaves(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a dumped config by their dotted name, as `--set` spells it."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        found |= leaves(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found


def _dump_field(config: Configurable.Config, name: str) -> Any:
    value = getattr(config, name)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(
            name, f"is {value}, which a file cannot hold", f"set {name} to a finite number"
        )
    return _dump_value(value)


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


def load(
    data: Mapping[str, Any],
    *,
    named: Sequence[type[Configurable]] = (),
    here: Mapping[str, Any] | None = None,
) -> Any:
    """The config in a file that may come from anywhere. Unknown keys, types and classes fail.

    It says what was done; how that is done here, it does not say: `Local` fields keep their
    defaults, or get those of `here`, by path (`{"videos.out": folder}`). Where the file has another
    value, the log says so. A class that reaches outside this process must be one of `named`.
    """
    source = _Source(named=tuple(named), here=here or {})
    config = _load(data, source)
    if source.left_out:
        logger.warning(
            "%s: not taken from the file, since they are settings of this machine: %s; "
            "give those that matter on the command line",
            type(config).__qualname__.removesuffix(".Config"),
            ", ".join(source.left_out),
        )
    return config


def rebuild(data: Mapping[str, Any]) -> Any:
    """The config that another process of this very command has dumped, with its local settings.

    Only for what our own processes send to each other; a file of a folder is read with `load`.
    """
    return _load(data, _OWN)


@dataclass
class _Source:
    """Where values come from, and what was left out of them."""

    own: bool = False
    """Whether they were set on this machine, by this command."""
    named: tuple[type[Configurable], ...] = ()
    here: Mapping[str, Any] = field(default_factory=dict[str, Any])
    path: tuple[str, ...] = ()
    left_out: list[str] = field(default_factory=list[str])

    def at(self, name: str) -> _Source:
        """The same source one field further in; nothing that we write is as deep as the limit."""
        if len(self.path) >= MAX_DEPTH:
            raise ConfigError(".".join(self.path[:3]), f"is nested more than {MAX_DEPTH} deep")
        return replace(self, path=(*self.path, name))


_OWN = _Source(own=True)


def _load(data: Mapping[str, Any], source: _Source) -> Any:
    _expect(isinstance(data, Mapping), data, "config", "a mapping")
    found = find_class(data.get("class"))
    values = {key: value for key, value in data.items() if key != "class"}
    if not issubclass(found, Configurable):
        return _load_fields(found, values, found.__qualname__, source)
    if found.reaches and not source.own and found not in source.named:
        raise ConfigError(
            class_name(found),
            f"uses {found.reaches}, and a file may not start that",
            f"name {found.__name__} on the command line",
        )
    return _load_fields(found.Config, values, found.__qualname__, source)


def _load_fields(cls: type[R], values: Mapping[str, Any], where: str, source: _Source) -> R:
    hints = field_types(cls)
    for key in values:
        if key not in hints:
            raise ConfigError(
                f"{where}.{key}", "unknown key", f"known keys: {', '.join(hints) or 'none'}"
            )
    used = {key: value for key, value in values.items() if _may_use(cls, key, source)}
    loaded = {
        key: _convert(value, hints[key], f"{where}.{key}", source.at(key))
        for key, value in used.items()
    }
    given = {key: _given(key, source) for key in hints if _given(key, source) is not None}
    try:
        made = cls(**{**loaded, **given})
    except TypeError as error:  # a required field is missing
        raise ConfigError(where, str(error)) from error
    source.left_out += [
        f"{'.'.join(source.at(key).path)}={ascii(value)[:MAX_SHOWN]}"
        for key, value in values.items()
        if key not in used and key not in given and _dump_value(getattr(made, key)) != value
    ]
    return made


def _may_use(cls: type[Any], key: str, source: _Source) -> bool:
    """Records that are no configs have no settings of a machine."""
    is_config = issubclass(cls, Configurable.Config)
    return source.own or not is_config or may_come_from_file(cls, key)


def _given(key: str, source: _Source) -> Any:
    return source.here.get(".".join((*source.path, key)))


def record_from_json(cls: type[R], data: Any) -> R:
    """A frozen dataclass from JSON values, with the same strictness as configs."""
    return cast(R, _convert(data, cls, cls.__name__, _Source()))


def own_value(value: Any, hint: Any, where: str) -> Any:
    """A value that was set on this machine as `hint`, the type of a config's field."""
    return _convert(value, hint, where, _OWN)


def _convert(value: Any, hint: Any, where: str, source: _Source) -> Any:
    """`value` (JSON) as `hint`, or a ConfigError that says what was expected."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, args, where, source)
    if origin is Literal:
        return _pick(value, args, where)
    if origin is tuple:
        return _convert_tuple(value, args, where, source)
    if origin in (list, set, frozenset):
        items = _convert_tuple(value, (args[0], ...), where, source)
        made = origin(items)
        _expect(len(made) == len(items), value, where, "different values")
        return made
    if origin in (dict, Mapping) or origin is typing.get_origin(Mapping[str, int]):
        _expect(isinstance(value, Mapping), value, where, "a mapping")
        return {
            key: _convert(item, args[1], f"{where}.{key}", source) for key, item in value.items()
        }
    return _convert_plain(value, hint, where, source)


def _convert_plain(value: Any, hint: Any, where: str, source: _Source) -> Any:
    if hint is None or hint is type(None):
        return _expect(value is None, value, where, "null")
    if isinstance(hint, type) and issubclass(hint, Configurable.Config):
        if isinstance(value, hint):
            return value
        _expect(isinstance(value, Mapping), value, where, f"a {hint.__qualname__}")
        made = (
            _load(value, source) if "class" in value else _load_fields(hint, value, where, source)
        )
        return _expect(isinstance(made, hint), made, where, f"a {hint.__qualname__}")
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        _expect(isinstance(value, Mapping), value, where, f"a {hint.__name__}")
        return _load_fields(hint, value, where, source)
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


def _convert_union(value: Any, options: tuple[Any, ...], where: str, source: _Source) -> Any:
    failures: list[str] = []
    for option in options:
        try:
            return _convert(value, option, where, source)
        except ConfigError as error:
            failures.append(error.what)
    raise ConfigError(where, " and ".join(failures))


def _convert_tuple(
    value: Any, args: tuple[Any, ...], where: str, source: _Source
) -> tuple[Any, ...]:
    _expect(isinstance(value, list | tuple), value, where, "a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(
            _convert(item, args[0], f"{where}[{i}]", source) for i, item in enumerate(value)
        )
    _expect(len(value) == len(args), value, where, f"{len(args)} values")
    return tuple(
        _convert(v, t, f"{where}[{i}]", source)
        for i, (v, t) in enumerate(zip(value, args, strict=True))
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
