"""Which settings a file may give, and which only this machine may.

A config in a manifest, a store or a hub repository says *what* was done. Programs, modules to
import, addresses, names of key variables, keyword arguments of libraries, paths and engines are
*how it is done here*: they come from the command line or the environment, never from a file.
    view: Recorded[str] = "state"    # a file may give it
    executable: Local[str] = ""      # a file may not
"""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from terrella.core.configurable import Configurable, field_types

T = TypeVar("T")
_known: dict[type[Any], dict[str, Origin | None]] = {}


class Origin(enum.Enum):
    """Where the value of a field may come from."""

    FILE = "a file or this machine"
    MACHINE = "this machine only"


Local = Annotated[T, Origin.MACHINE]
"""How something is done on this machine: a value in a file is not used."""
Recorded = Annotated[T, Origin.FILE]
"""What was done, in a type that could also say how: text, a path, anything."""


def may_come_from_file(cls: type[Any], field: str) -> bool:
    """Whether a file may give this field of a config class.

    Numbers, choices and nested configs may. An open type may only if it is declared `Recorded`: a
    new field of text or of a path is this machine's own until somebody says otherwise.
    """
    return _origins(cls)[field] is Origin.FILE


def undeclared(cls: type[Any]) -> list[str]:
    """Open fields of a config class that are neither `Local` nor `Recorded`."""
    return [name for name, origin in _origins(cls).items() if origin is None]


def _origins(cls: type[Any]) -> dict[str, Origin | None]:
    if cls not in _known:
        _known[cls] = _find_origins(cls)
    return _known[cls]


def _find_origins(cls: type[Any]) -> dict[str, Origin | None]:
    """The origin of each field; None for an open field that declares none.

    A declaration holds for subclasses that give the field another default, and `Local` wins.
    """
    bases = [field_types(base, declarations=True) for base in cls.__mro__ if _has_fields(base)]
    origins: dict[str, Origin | None] = {}
    for name, hint in bases[0].items():
        declared = [_declared(base[name]) for base in bases if name in base]
        if Origin.MACHINE in declared:
            origins[name] = Origin.MACHINE
        else:
            origins[name] = Origin.FILE if Origin.FILE in declared or not is_open(hint) else None
    return origins


def _has_fields(cls: type[Any]) -> bool:
    return dataclasses.is_dataclass(cls)


def _declared(hint: Any) -> Origin | None:
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note for note in notes if isinstance(note, Origin)), None)


def is_open(hint: Any) -> bool:
    """Whether values of this type could name a program, a module, an address or a file."""
    if get_origin(hint) is Literal or hint in (int, float, bool, None, type(None), Ellipsis):
        return False
    if get_origin(hint) is Annotated:
        return is_open(get_args(hint)[0])
    if get_origin(hint) is not None:
        return any(map(is_open, get_args(hint)))
    if not isinstance(hint, type) or hint in (str, Path):
        return True
    if issubclass(hint, enum.Enum | Configurable.Config):
        return False
    return not _has_fields(hint) or any(map(is_open, field_types(hint).values()))
