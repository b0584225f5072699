"""`terrella doctor`: what is installed, what is missing for which extra, and what this machine has.

It imports nothing heavy: versions come from package metadata.
    for line in diagnose(): ...
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report."""

    topic: str
    subject: str
    good: bool
    detail: str


def diagnose() -> Iterator[Finding]:
    """Machine, core dependencies, extras."""
    yield from _machine()
    for extra, packages in sorted(requirements().items()):
        missing = [name for name in packages if installed(name) is None]
        have = ", ".join(f"{name} {installed(name)}" for name in packages if name not in missing)
        remedy = f"missing: {', '.join(missing)} -> pip install 'terrella[{extra}]'" if missing else ""
        topic = "core" if extra == "" else "extra"
        yield Finding(
            topic=topic, subject=extra or "terrella", good=not missing, detail=" | ".join(filter(None, (have, remedy)))
        )


def installed(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def requirements() -> dict[str, list[str]]:
    """Package names by extra, read from our own metadata; the core's are under ''."""
    found: dict[str, list[str]] = {"": []}
    for line in requires("terrella") or []:
        name = re.split(r"[\s;<>=!~\[]", line, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        found.setdefault(extra.group(1) if extra else "", []).append(name)
    return found


def _machine() -> Iterator[Finding]:
    python = platform.python_version()
    yield Finding(topic="machine", subject="python", good=True, detail=f"{python} on {platform.platform()}")
    cores = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count()
    yield Finding(topic="machine", subject="cores", good=True, detail=str(cores))
    memory = memory_gib()
    detail = f"{memory:.0f} GiB" if memory else "unknown on this system"
    yield Finding(topic="machine", subject="memory", good=memory is None or memory >= 4, detail=detail)
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield Finding(topic="machine", subject="disk here", good=free >= 5, detail=f"{free:.0f} GiB free")
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    yield Finding(topic="machine", subject="gpu", good=True, detail=f"{len(gpus)} NVIDIA" if gpus else "none seen")


def memory_gib() -> float | None:
    """Memory of the machine, where Linux says it."""
    table = Path("/proc/meminfo")
    if not table.exists():
        return None
    found = re.search(r"MemTotal:\s+(\d+) kB", table.read_text())
    return int(found.group(1)) / 2**20 if found else None
