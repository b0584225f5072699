"""Arrays out of a pickle, without unpickling: the file is read as data by a machine that knows numpy arrays only.

Weights that others publish as pickles of numpy arrays are converted once, by this, to safetensors. Nothing of the file
is imported or called: an opcode or a name beyond dictionaries, numbers and arrays is refused with its position.
    read_array_pickle(path) -> {"Conv_0": {"kernel": array, "bias": array}, ...}
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrella.core.errors import StoreError

MAKE_ARRAY, ARRAY, DTYPE = "numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"
ADMITTED = {MAKE_ARRAY, MAKE_ARRAY.replace("core", "_core"), ARRAY, DTYPE}
PLAIN_TYPES = {"f4", "f8", "i4", "i8", "f2", "u1"}


class _Name(NamedTuple):
    """A name that the file mentions; never looked up."""

    path: str


class _Type:
    """A dtype being told."""

    def __init__(self, code: str) -> None:
        if code not in PLAIN_TYPES:
            raise ValueError(f"arrays of type {code!r}")
        self.code, self.order = code, "<"


class _Array:
    """An array being told; `value` is there when its bytes have come."""

    value: Any = None


class _Machine:
    """A stack, a memo, and the few opcodes that data needs."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:
        if name in ("PROTO", "FRAME", "STOP"):
            return
        constants = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
        if name in constants:
            self.stack.append(constants[name])
        elif name.startswith(("BININT", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINFLOAT")):
            self.stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        else:
            self._compose(name, argument)

    def _compose(self, name: str, argument: Any) -> None:
        simple: dict[str, Callable[[], Any]] = {
            "MARK": lambda: self.marks.append(len(self.stack)),
            "EMPTY_DICT": lambda: self.stack.append({}),
            "TUPLE": lambda: self.stack.append(tuple(self._since_mark())),
            "TUPLE1": lambda: self.stack.append(self._last(1)), "TUPLE2": lambda: self.stack.append(self._last(2)),
            "TUPLE3": lambda: self.stack.append(self._last(3)),
            "SETITEM": lambda: self._set(self._last(2)), "SETITEMS": lambda: self._set(self._since_mark()),
            "GLOBAL": lambda: self._mention(argument),
            "STACK_GLOBAL": lambda: self._mention(" ".join(self._last(2))),
            "REDUCE": self._make, "BUILD": self._fill,
        }  # fmt: skip
        if name not in simple:
            raise ValueError(f"the opcode {name}")
        simple[name]()

    def _since_mark(self) -> list[Any]:
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def _last(self, count: int) -> tuple[Any, ...]:
        found = tuple(self.stack[-count:])
        del self.stack[-count:]
        return found

    def _set(self, items: Any) -> None:
        if not isinstance(self.stack[-1], dict):
            raise ValueError("items set on what is no dictionary")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _mention(self, path: str) -> None:
        if path not in ADMITTED:
            raise ValueError(f"the name {path!r}")
        self.stack.append(_Name(path))

    def _make(self) -> None:
        name, arguments = self._last(2)
        if isinstance(name, _Name) and name.path.endswith("_reconstruct"):
            self.stack.append(_Array())
        elif name == _Name(DTYPE):
            self.stack.append(_Type(arguments[0]))
        else:
            raise ValueError(f"a call of {name!r}")

    def _fill(self) -> None:
        """The state of a dtype (its byte order) or of an array (shape, type, order, bytes)."""
        (state,) = self._last(1)
        target = self.stack[-1]
        if isinstance(target, _Type):
            target.order = state[1]
        elif isinstance(target, _Array):
            _, shape, kind, fortran, data = state
            flat = np.frombuffer(data, np.dtype(kind.code).newbyteorder(kind.order.replace("|", "=")))
            target.value = flat.reshape(shape, order="F" if fortran else "C")
        else:
            raise ValueError("state given to what is no array")


def read_array_pickle(path: Path) -> Any:
    """Dictionaries of arrays; anything else in the file is an error that says what and where."""
    machine = _Machine()
    read = 0
    try:
        for code, argument, place in pickletools.genops(path.read_bytes()):
            read = place or read
            machine.run(code.name, argument)
        (found,) = machine.stack
        return _plain(found)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        what = f"holds more than arrays, at byte {read}: {error}"
        raise StoreError(str(path), what, "it is not converted; get the weights from their publisher again") from error


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
