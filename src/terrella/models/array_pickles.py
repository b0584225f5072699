"""Read numpy arrays from a pickle without unpickling it.

Some weights are published as pickles of numpy arrays; this module converts them once to
safetensors. It interprets the opcodes itself and imports or calls nothing that the file names. Any
opcode or name that dictionaries, numbers and arrays do not need is an error with its position. The
result is a tree of bounded size: a dictionary that holds itself, or itself twice by reference, is
refused after bounded work.
    read_array_pickle(path)    # {"Conv_0": {"kernel": array, "bias": array}, ...}
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrella.core.errors import StoreError
from terrella.core.untrusted import CONTENT_ERRORS, read_bytes

MAKE_ARRAY, ARRAY, DTYPE = "numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"
ALLOWED_NAMES = {MAKE_ARRAY, MAKE_ARRAY.replace("core", "_core"), ARRAY, DTYPE}
ALLOWED_DTYPES = {"f4", "f8", "i4", "i8", "f2", "u1"}
PUSH_ARGUMENT = (
    "BININT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINBYTES",
    "SHORT_BINBYTES",
    "BINFLOAT",
)
"""Prefixes of the opcodes that push their argument."""
MAX_FILE_BYTES = 2**31
MAX_OPCODES = 2_000_000
MAX_VALUES = 100_000
"""Values of the result, counted once for each place where they appear."""
MAX_DEPTH = 32


class _Name(NamedTuple):
    """A name that the file refers to; it is never looked up."""

    path: str


class _Type:
    """A dtype under construction."""

    def __init__(self, code: Any) -> None:
        # Only a text is looked up or shown: the hash of a tuple of tuples may take forever.
        if not isinstance(code, str) or code not in ALLOWED_DTYPES:
            raise ValueError(f"arrays of type {_shown(code)}")
        self.code = code
        self.order = "<"


class _Array:
    """An array under construction; `value` is set by the BUILD opcode."""

    value: Any = None


class _Machine:
    """A pickle machine with a stack, a memo, and the few opcodes that arrays need."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.actions: dict[str, Callable[[Any], Any]] = {
            "PROTO": lambda _: None,
            "FRAME": lambda _: None,
            "STOP": lambda _: None,
            "NONE": lambda _: self.stack.append(None),
            "NEWTRUE": lambda _: self.stack.append(True),
            "NEWFALSE": lambda _: self.stack.append(False),
            "BINPUT": self._keep,
            "LONG_BINPUT": self._keep,
            "MEMOIZE": self._keep,
            "BINGET": lambda number: self.stack.append(self.memo[number]),
            "LONG_BINGET": lambda number: self.stack.append(self.memo[number]),
            "MARK": lambda _: self.marks.append(len(self.stack)),
            "EMPTY_DICT": lambda _: self.stack.append({}),
            "TUPLE": lambda _: self.stack.append(tuple(self._since_mark())),
            "TUPLE1": lambda _: self.stack.append(self._last(1)),
            "TUPLE2": lambda _: self.stack.append(self._last(2)),
            "TUPLE3": lambda _: self.stack.append(self._last(3)),
            "SETITEM": lambda _: self._set(self._last(2)),
            "SETITEMS": lambda _: self._set(self._since_mark()),
            "GLOBAL": self._push_name,
            "STACK_GLOBAL": lambda _: self._push_name(" ".join(self._last(2))),
            "REDUCE": lambda _: self._make(),
            "BUILD": lambda _: self._fill(),
        }

    def run(self, name: str, argument: Any) -> None:
        if name in self.actions:
            self.actions[name](argument)
        elif name.startswith(PUSH_ARGUMENT):
            self.stack.append(argument)
        else:
            raise ValueError(f"the opcode {name}")

    def _keep(self, number: int | None) -> None:
        self.memo[len(self.memo) if number is None else number] = self.stack[-1]

    def _since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _last(self, count: int) -> tuple[Any, ...]:
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def _set(self, items: Any) -> None:
        if not isinstance(self.stack[-1], dict):
            raise ValueError("items set on something that is not a dictionary")
        keys = items[::2]
        if not all(isinstance(key, str | int) for key in keys):
            raise ValueError("a key that is neither a text nor a number")
        self.stack[-1].update(zip(keys, items[1::2], strict=True))

    def _push_name(self, path: str) -> None:
        if path not in ALLOWED_NAMES:
            raise ValueError(f"the name {_shown(path)}")
        self.stack.append(_Name(path))

    def _make(self) -> None:
        name, arguments = self._last(2)
        if isinstance(name, _Name) and name.path.endswith("_reconstruct"):
            self.stack.append(_Array())
        elif isinstance(name, _Name) and name.path == DTYPE:
            self.stack.append(_Type(arguments[0]))
        else:
            raise ValueError(f"a call of {_shown(name)}")

    def _fill(self) -> None:
        """Set the state of a dtype (its byte order) or an array (shape, dtype, order, bytes)."""
        (state,) = self._last(1)
        target = self.stack[-1]
        if isinstance(target, _Type):
            if state[1] not in ("<", ">", "|", "="):
                raise ValueError("an unknown byte order")
            target.order = state[1]
        elif isinstance(target, _Array):
            _, shape, kind, fortran, data = state
            if not isinstance(data, bytes) or not all(isinstance(size, int) for size in shape):
                raise ValueError("an array without its shape and its bytes")
            dtype = np.dtype(kind.code).newbyteorder(kind.order.replace("|", "="))
            flat = np.frombuffer(data, dtype)
            target.value = flat.reshape(shape, order="F" if fortran is True else "C")
        else:
            raise ValueError("state set on something that is not an array")


def read_array_pickle(path: Path) -> Any:
    """Read nested dictionaries of arrays; StoreError if the file contains anything else."""
    data = read_bytes(path, MAX_FILE_BYTES)
    machine = _Machine()
    position = 0
    try:
        with warnings.catch_warnings(action="ignore"):  # of odd escapes in texts
            for number, (code, argument, start) in enumerate(pickletools.genops(data)):
                position = start or position
                if number > MAX_OPCODES:
                    raise ValueError(f"more than {MAX_OPCODES:,} opcodes")
                machine.run(code.name, argument)
        (value,) = machine.stack
        return _Tree(len(data)).of(value)
    except CONTENT_ERRORS as error:
        raise StoreError(
            str(path),
            f"contains more than arrays, at byte {position}: {str(error)[:300]}",
            "the file was not converted; download the weights from their publisher again",
        ) from error


class _Tree:
    """Copies the result as a tree, within its ceilings."""

    def __init__(self, file_bytes: int) -> None:
        self.values_left = MAX_VALUES
        # Arrays do not share their bytes in the file, so together they are smaller than the file.
        self.bytes_left = file_bytes

    def of(self, value: Any, depth: int = 0) -> Any:
        self.values_left -= 1
        if depth > MAX_DEPTH or self.values_left < 0:
            raise ValueError(f"more than {MAX_VALUES:,} values, or nested deeper than {MAX_DEPTH}")
        if isinstance(value, _Array):
            if value.value is None:
                raise ValueError("an array without content")
            self.bytes_left -= value.value.nbytes
            if self.bytes_left < 0:
                raise ValueError("arrays that are larger together than the file")
            return value.value
        if isinstance(value, dict):
            return {key: self.of(item, depth + 1) for key, item in value.items()}
        if value is None or isinstance(value, str | int | float | bytes):
            return value
        raise ValueError(f"a value that is not an array: {_shown(value)}")


def _shown(value: Any) -> str:
    """A short text; containers are not written out, because they may hold each other."""
    text = value.path if isinstance(value, _Name) else value
    return repr(text[:100]) if isinstance(text, str) else type(value).__name__
