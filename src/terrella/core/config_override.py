"""Changes of a config that are given as text, as on the command line: `--set world.size=8`.

override(FrozenLake.Config(), ["size=8", "view=coordinates"]).build()
"""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from terrella.core.config import own_value
from terrella.core.configurable import Configurable, field_types
from terrella.core.errors import ConfigError
from terrella.core.known_names import known_names

C = TypeVar("C", bound="Configurable.Config")

Named = Mapping[type[Any], Callable[[str], Any]]
"""Functions that make a nested config from a name, by the type of the field."""


def override(config: C, assignments: Iterable[str], *, named: Named | None = None) -> C:
    """Apply `a.b=c` assignments; the text is read as the field's type, and an unknown key fails.

    `named` gives nested configs by name: `{World.Config: world_config}` allows `world=sokoban`, and
    `worlds=sokoban,sudoku` for a list of them.
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
        return _with_field(config, name, _parse_field(text, hints[name], where, named), where)
    current = getattr(config, name)
    if current is None:
        current = _unset_config(hints[name])
    if isinstance(current, Configurable.Config):
        return config.replace(**{name: _override_one(current, rest, text, where, named)})
    if isinstance(current, Mapping):
        entry = _parse(text, get_args(hints[name])[1], where)
        return _with_field(config, name, {**current, ".".join(rest): entry}, where)
    raise ConfigError(where, f"{name!r} has no fields of its own")


def _unset_config(hint: Any) -> Configurable.Config | None:
    """The default config of an optional one, which a setting of one of its fields makes."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    is_config = len(kinds) == 1 and isinstance(kinds[0], type)
    return kinds[0]() if is_config and issubclass(kinds[0], Configurable.Config) else None


def _with_field(config: C, name: str, value: Any, where: str) -> C:
    """The config with one field changed; if the config refuses it, the whole path is named."""
    try:
        return config.replace(**{name: value})
    except ConfigError as error:
        if error.where != name:
            raise
        remedy = error.remedy.replace(f"set {name}", f"set {where}")
        raise ConfigError(where, error.what, remedy) from error


def _parse_field(text: str, hint: Any, where: str, named: Named) -> Any:
    """A field's value from text; a nested config may be given by name, several by their names."""
    item, *rest = get_args(hint) or (None,)
    if rest == [...] and isinstance(item, type) and issubclass(item, tuple(named)):
        names = [each.strip() for each in text.split(",") if each.strip()]
        return tuple(_parse_field(each, item, where, named) for each in names)
    for kind, make in named.items():
        if isinstance(hint, type) and issubclass(hint, kind):
            value = make(text)
            expected = hint.__qualname__.removesuffix(".Config")
            if not isinstance(value, hint):
                raise ConfigError(where, f"expected a config of {expected}, got {text!r}")
            return value
    return _parse(text, hint, where)


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
        if len(kinds) != len(items):
            raise ConfigError(where, f"expected {len(kinds)} values, got {text!r}")
        return tuple(_parse(item, kind, where) for item, kind in zip(items, kinds, strict=True))
    value = own_value(_read_scalar(text, hint), hint, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(where, f"expected a finite number, got {text!r}", "set a number")
    return value


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
                # Not this kind of number; left as text, `own_value` then says what was expected
                continue
    return text
