"""Files that somebody else wrote: read within bounds of size, depth and time, with one error.

A file from outside may be damaged or hostile. Each reader here refuses what is too large, too deep
or outside its folder before it spends time or memory on it. `reading` turns whatever a parser
raises on such content into a StoreError that names the file.
    info = parse_json(read_bytes(path), str(path))
    path = inside(folder, info["data_path"])
    with reading(str(path), "download it again"): ...
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import lzma
import math
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Self

import numpy as np

from terrella.core.errors import StoreError, TerrellaError

MAX_DEPTH = 100
"""Objects and lists inside each other; our own files have about ten."""
MAX_FILE_BYTES = 2**30
MAX_JSON_BYTES = 2**28
MAX_LINE_BYTES = 2**24
"""One line of a JSONL file that is read line by line."""
MAX_NAME = 1000
MAX_UNPACKED_BYTES = 2**36
"""The files of a tar archive together: the adapter of a large model."""
MAX_UNPACKED_FILES = 1000
MAX_TAR_HEADER_BYTES = 2**12
"""The longest name or set of attributes of one member of a tar archive: a path of Linux."""
MAX_TAR_HEADERS_BYTES = 2**16
"""All such headers of an archive."""
LZMA_MEMORY = 2**27
"""Enough for the dictionary of `xz -9`, which needs 65 MiB."""
DAMAGED = "the file is damaged or of another format: get it again from its publisher"
CONTENT_ERRORS = (
    ValueError,  # also UnicodeDecodeError, JSONDecodeError, ArrowInvalid
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    NotImplementedError,  # a feature of Parquet that Arrow does not read
    OSError,
    MemoryError,
    EOFError,
    struct.error,
    lzma.LZMAError,
    tarfile.TarError,
    zlib.error,
)
"""What parsers raise on content that they do not understand."""
# A string, closed or cut off by the end: it always matches, so that the time is linear.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TAR_HEADERS = (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE)
"""They say more about the member that follows."""
_TAR_MEMBERS = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)


@contextlib.contextmanager
def reading(where: str, remedy: str = DAMAGED) -> Iterator[None]:
    """Report what a parser raises on foreign content as a StoreError at `where`.

    A StoreError of a part, such as one image of a record, gets the place of the whole.
    """
    try:
        yield
    except StoreError as error:
        if where in error.where:
            raise
        raise StoreError(f"{where}: {error.where}", error.what, error.remedy or remedy) from error
    except TerrellaError:
        raise
    except CONTENT_ERRORS as error:
        what = f"cannot be read: {type(error).__name__}: {str(error)[:300]}"
        raise StoreError(where, what, remedy) from error


def read_bytes(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file of bounded size."""
    with reading(str(path), "check the path"):
        if not path.is_file():  # a pipe or a device would never end
            raise StoreError(str(path), "is not a file", "check the path")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise StoreError(str(path), f"is larger than {max_bytes:,} bytes", DAMAGED)
    return data


def inside(folder: Path, name: str) -> Path:
    """The path of a file that a dataset names; it must lie in the dataset's folder.

    Links may lead elsewhere in the folder, or to the blobs of a hub's cache beside it.
    """
    parts = PurePosixPath(name).parts
    strange = "\\" in name or "\0" in name or len(name) > MAX_NAME
    if not parts or name.startswith("/") or ".." in parts or strange:
        raise StoreError(str(folder), f"names a file outside of it: {name[:200]!r}", DAMAGED)
    with reading(f"{folder}: {name[:200]!r}"):
        root, target = folder.resolve(), (folder / name).resolve()
        cached = root.parent.name == "snapshots" and target.is_relative_to(
            root.parents[1] / "blobs"
        )
    if not (target.is_relative_to(root) or cached):
        raise StoreError(str(folder), f"has a link that leads outside: {name[:200]!r}", DAMAGED)
    return folder / name


# --- JSON -----------------------------------------------------------------------------------------


def parse_json(
    data: bytes | str,
    where: str,
    remedy: str = DAMAGED,
    *,
    finite: bool = True,
    surrogates: bool = False,
) -> Any:
    """One JSON value of bounded depth, in UTF-8.

    It holds NaN and infinity only if not `finite`, and lone surrogates only if `surrogates`.
    """
    errors = "surrogatepass" if surrogates else "strict"
    with reading(where, remedy):
        encoded = data.encode("utf-8", errors) if isinstance(data, str) else data
        if _is_too_deep(encoded):
            raise StoreError(where, f"is nested deeper than {MAX_DEPTH}", remedy)
        return (_FINITE if finite else _ANY).decode(encoded.decode("utf-8", errors))


def read_json(path: Path, remedy: str = DAMAGED, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The value of a JSON file."""
    return parse_json(read_bytes(path, max_bytes), str(path), remedy)


def read_json_lines(path: Path, remedy: str = DAMAGED, *, finite: bool = True) -> Iterator[Any]:
    """Yield one value per line; empty lines are skipped, a damaged line is named.

    Only line feeds end a line: texts may contain other separators, such as U+2028.
    """
    for number, line in enumerate(read_bytes(path).split(b"\n"), start=1):
        if line.strip():
            yield parse_json(line, f"{path}, line {number}", remedy, finite=finite)


def stream_json_lines(
    path: Path, remedy: str = DAMAGED, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line, with one line in memory at a time.

    The file may be of any size. Empty lines are skipped; a damaged or overlong line is named.
    """
    with reading(str(path), "check the path"):
        if not path.is_file():
            raise StoreError(str(path), "is not a file", "check the path")
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(max_line_bytes + 1)
            if not line:
                return
            where = f"{path}, line {number}"
            if len(line) > max_line_bytes:
                raise StoreError(where, f"is longer than {max_line_bytes:,} bytes", remedy)
            if line.strip():
                yield number, parse_json(line, where, remedy)


def count_lines(path: Path) -> int:
    """How many lines a file has, for a display; nothing is parsed."""
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(2**20), b"")
        return sum(block.count(b"\n") for block in blocks)


def _is_too_deep(data: bytes) -> bool:
    """Whether lists and objects are nested deeper than MAX_DEPTH; counted before parsing."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = np.frombuffer(_STRING.sub(b"", data).translate(None, _NO_BRACKETS), np.uint8)
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opens, 1, -1)).max(initial=0)) > MAX_DEPTH


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # 1e999 is JSON, and infinity as a float
        raise ValueError(f"{text[:50]} is too large")
    return value


_FINITE = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite_float)
_ANY = json.JSONDecoder()


# --- archives -------------------------------------------------------------------------------------


def read_xz(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The content of an xz file with one stream; a bomb is refused at `max_bytes`."""
    data = read_bytes(path)
    with reading(str(path)):
        unpacker = lzma.LZMADecompressor(memlimit=LZMA_MEMORY)
        content = unpacker.decompress(data, max_bytes + 1)
        if len(content) > max_bytes:
            raise StoreError(str(path), f"unpacks to more than {max_bytes:,} bytes", DAMAGED)
        if not unpacker.eof:
            raise StoreError(str(path), "is cut off", DAMAGED)
        if unpacker.unused_data.strip(b"\0"):
            raise StoreError(str(path), "has data after its end", DAMAGED)
    return content


def read_gzip(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The content of a gzip file; a bomb is refused at `max_bytes`."""
    return unpack_gzip(read_bytes(path), str(path), max_bytes)


def unpack_gzip(data: bytes, where: str, max_bytes: int) -> bytes:
    """The content of gzip data that was read from `where`."""
    with reading(where), gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise StoreError(where, f"unpacks to more than {max_bytes:,} bytes", DAMAGED)
    return content


def unpack_tar(archive: Path, folder: Path, max_bytes: int = MAX_UNPACKED_BYTES) -> None:
    """Unpack the files and folders of a tar archive, none outside the folder, within ceilings.

    Links are refused: some versions of Python follow long chains of them out of the folder.
    """
    with reading(str(archive)), tarfile.open(archive, tarinfo=_plain_members(str(archive))) as tar:
        left = max_bytes
        for number, member in enumerate(tar):
            if member.size < 0 or member.issparse():
                what = f"has a sparse file, or one of negative size: {member.name[:200]!r}"
                raise StoreError(str(archive), what, DAMAGED)
            left -= member.size
            if left < 0 or number >= MAX_UNPACKED_FILES:
                what = f"has more than {MAX_UNPACKED_FILES} files or {max_bytes:,} bytes"
                raise StoreError(str(archive), what, DAMAGED)
            tar.extract(member, folder, filter="data")


def _plain_members(where: str) -> type[tarfile.TarInfo]:
    """A class of members for one archive: refuses a header before tarfile acts on it."""
    left = MAX_TAR_HEADERS_BYTES

    class PlainMember(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            nonlocal left
            member = super().frombuf(buf, encoding, errors)
            if member.type in _TAR_HEADERS:
                left -= member.size
                # tarfile reads a header whole, and searches it in quadratic time.
                if not 0 <= member.size <= MAX_TAR_HEADER_BYTES or left < 0:
                    raise StoreError(where, f"has headers of {member.size:,} bytes", DAMAGED)
            elif member.type not in _TAR_MEMBERS:
                what = f"has a member that is neither file nor folder: {member.name[:200]!r}"
                raise StoreError(where, what, DAMAGED)
            return member

        def _proc_gnusparse_10(self, *_: Any) -> None:
            # The one sparse format that a header announces and tarfile reads from the file's data.
            raise StoreError(where, "has a sparse file", DAMAGED)

    return PlainMember
