"""Faults at the n-th operation on the disk, in this process: SIGKILL, a full disk, a broken disk.

Operations are writes (Python's files, and safetensors' own), fsyncs and renames. Install it in a
process that may die: a fork.
    operations = DiskFaults(fault="kill", at=17).install()
"""

import builtins
import errno
import functools
import io
import os
import signal
import sys
import time
from pathlib import Path

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}


class DiskFaults:
    """Counts operations below a folder; at the n-th, does what `fault` says."""

    def __init__(self, folder, *, fault="none", at=0):
        """`fault` is none, kill (just after the operation), ENOSPC or EIO (in its place)."""
        self.folder, self.fault, self.at = str(folder), fault, at
        self.count = 0

    def install(self):
        opened = functools.partial(self._open, io.open)
        io.open = builtins.open = opened
        os.fsync = functools.partial(self._after, os.fsync)
        os.replace = functools.partial(self._after, os.replace)  # pathlib calls these, too
        os.rename = functools.partial(self._after, os.rename)
        if "safetensors.torch" in sys.modules:
            module = sys.modules["safetensors.torch"]
            module.serialize_file = functools.partial(self._serialize, module.serialize_file)
        return self

    def _after(self, real, *args, **options):
        """An operation that is done and may be the last, or that fails."""
        if self.fault in ERRORS and self.fails_now():
            raise self.error()
        result = real(*args, **options)
        self.passed()
        return result

    def passed(self):
        """Count an operation that is done."""
        if self.fault not in ERRORS:
            self.count += 1
        if self.fault == "kill" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def fails_now(self):
        """Whether this operation must fail; counts it."""
        if self.fault not in ERRORS:
            return False
        self.count += 1
        return self.count == self.at

    def error(self):
        number = ERRORS[self.fault]
        return OSError(number, os.strerror(number))

    def _open(self, real, file, mode="r", *args, **options):
        opened = real(file, mode, *args, **options)
        is_path = isinstance(file, str | Path)
        if is_path and set(mode) & set("wax+") and str(file).startswith(self.folder):
            return CountedFile(opened, self)
        return opened

    def _serialize(self, real, tensors, path, *args, **options):
        if self.fails_now():
            from safetensors import SafetensorError

            error = self.error()
            raise SafetensorError(
                f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})"
            )
        real(tensors, path, *args, **options)
        self.passed()


class CountedFile:
    """A file whose writes are counted, and reach the disk one by one."""

    def __init__(self, file, faults):
        self.file, self.faults = file, faults

    def write(self, data):
        if self.faults.fails_now():
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            raise self.faults.error()
        written = self.file.write(data)
        self.file.flush()
        self.faults.passed()
        return written

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)

    def __iter__(self):
        return iter(self.file)

    def __getattr__(self, name):
        return getattr(self.file, name)


def shift_clock(seconds):
    """Let this process believe that it is earlier or later."""
    now, nanoseconds = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: nanoseconds() + int(seconds * 1e9)
