"""What the benchmark scripts share: paths, result files, timers, the `terrella` command.

Import it before numpy and torch. It puts the root of the repository on the import path, silences
warnings, and limits a process to one thread unless OMP_NUM_THREADS is set. Needs no extras.
    import common
    common.write_part("engine", "sizes", {"rows": rows}, command=common.command("sizes"))
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PICTURES = ROOT / "docs" / "pictures"
CPU_FIELDS = slice(11, 13)
"""User and system time in /proc/PID/stat, counted after the name of the process."""

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.simplefilter("ignore")
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def quiet_trl() -> None:
    """Import TRL without vLLM and without warnings; call it before anything else imports TRL."""
    import tests.support.quiet_trl  # noqa: F401


# --- result files ---------------------------------------------------------------------------------


def read_results(name: str) -> dict[str, Any]:
    """The content of results/NAME.json; empty if there is no such file."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def save_results(name: str, record: Mapping[str, Any]) -> None:
    """Write results/NAME.json as it is."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def interval(metric: Mapping[str, Any], *, digits: int = 3, sign: str = "") -> str:
    """A mean with its interval, as tables show it."""
    low, high = metric["low"], metric["high"]
    spread = "" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{metric['mean']:{sign}.{digits}f}{spread}"


def write_part(
    name: str, part: str, metrics: Mapping[str, Any], *, command: str, what: str | None = None
) -> dict[str, Any]:
    """Replace one part of results/NAME.json; the other parts stay. Returns the part."""
    record = read_results(name)
    description = {"what": what} if what else {}
    record[part] = {**description, **provenance(command), **metrics}
    save_results(name, record)
    print(f"{name}.json: {part} written", flush=True)
    return dict(record[part])


def write_results(
    name: str, metrics: Mapping[str, Any], *, command: str, replace: bool = False
) -> None:
    """Write results/NAME.json; keys that `metrics` does not have stay, unless `replace`.

    A `note` stays in either case: a person wrote there what the figures do not show.
    """
    before = read_results(name)
    if replace:
        before = {key: value for key, value in before.items() if key == "note"}
    save_results(name, {**before, **provenance(command), **metrics})
    print(f"{name}.json written", flush=True)


def provenance(command: str) -> dict[str, Any]:
    """What every result records: the command, the commit, the machine and the versions."""
    from terrella.core.run_folder import installed_versions

    return {
        "command": command,
        "commit": commit(),
        "machine": {"cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 2)},
        "versions": {"python": platform.python_version(), **installed_versions()},
    }


def commit() -> str:
    """The short hash of HEAD; empty outside of a git checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def command(*arguments: object, **environment: object) -> str:
    """The command line of the running script with these arguments, to be recorded."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    return " ".join([*variables, "python", script, *map(str, arguments)])


def write_rows(name: str, rows: Mapping[str, Any]) -> None:
    """Write the per-instance rows of results/NAME.json to results/rows/NAME.json.gz."""
    from terrella.core.result_rows import write_rows as write

    write(RESULTS / "rows" / f"{name}.json.gz", rows)


def read_rows(name: str) -> dict[str, Any]:
    """The rows of a result; empty if there are none."""
    from terrella.core.result_rows import read_rows as read

    path = RESULTS / "rows" / f"{name}.json.gz"
    return read(path) if path.exists() else {}


def mean_row(values: Sequence[float]) -> dict[str, float | None]:
    """The mean with its 95% interval; one value shows no spread."""
    import math

    from terrella.core.stats import mean_interval

    low, high = mean_interval(list(values))
    known = math.isfinite(low)
    mean = math.fsum(values) / len(values)
    return {"mean": mean, "low": low if known else None, "high": high if known else None}


def won_more(
    won: Sequence[float], *, than: Sequence[float], name: str
) -> dict[str, dict[str, float | None]]:
    """The success of an arm, and its paired difference to the arm of this name."""
    pairs = zip(won, than, strict=True)
    return {
        "success": mean_row(won),
        f"minus_{name}": mean_row([one - other for one, other in pairs]),
    }


# --- time -----------------------------------------------------------------------------------------


class Timer:
    """Wall and CPU seconds of a block: `with Timer() as timer: ...`, then `timer.seconds`."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()
        self._stopped: tuple[float, float] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = self._elapsed()

    def _elapsed(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, time.process_time() - self._cpu

    @property
    def seconds(self) -> float:
        """Wall time, so far or of the whole block."""
        return (self._stopped or self._elapsed())[0]

    @property
    def cpu_seconds(self) -> float:
        """CPU time of this process, so far or of the whole block."""
        return (self._stopped or self._elapsed())[1]


def cpu_seconds_of(*pids: int) -> float:
    """CPU time that other processes have used; a process that has ended counts 0."""
    ticks = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        ticks += sum(int(field) for field in fields[CPU_FIELDS])
    return ticks / os.sysconf("SC_CLK_TCK")


# --- commands -------------------------------------------------------------------------------------


def terrella(*arguments: object) -> list[str]:
    """The command line of `terrella ARGUMENTS` in this interpreter."""
    return [sys.executable, "-m", "terrella.cli", *map(str, arguments)]


def settings(*assignments: str) -> list[str]:
    """`--set` for each assignment."""
    return [argument for assignment in assignments for argument in ("--set", assignment)]


def run_tests(*arguments: str, **environment: str) -> dict[str, Any]:
    """Run pytest: whether all tests passed, its last line, and the seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    with Timer() as timer:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
        )
    lines = done.stdout.strip().splitlines()
    return {
        "passed": done.returncode == 0,
        "result": lines[-1] if lines else done.stderr[-300:],
        "seconds": round(timer.seconds),
    }
