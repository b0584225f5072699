"""The break-in report's findings: what was tried, what stops it now, and which tests hold it.

`findings.json` has a row for each part of a finding. `taken_out` says which lines are the fix, as
text to replace; `without_the_fix` says what the tests showed when it was taken out. `.ci/attack
nightly` runs all tests of the table at once, and `.ci/attack weekly` takes every fix out, in a copy
of the tree: a test must fail then.
    python -m tests.attack.findings 7 17    # take out the fixes of these findings, and see
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.attack.campaign import ROOT

NUMBERS = range(1, 25)
"""Findings of the report."""
TABLE = Path(__file__).with_suffix(".json")
COPIED = ("src", "tests", "benchmarks", "docs", "results", "pyproject.toml", "README.md")
LEVEL_VARIABLE, RECORDS_VARIABLE = "TERRELLA_ATTACK", "TERRELLA_ATTACK_RECORDS"
SECONDS = 1800


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Lines of a fix, and what stands in their place when it is taken out."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a finding."""

    finding: int
    tried: str
    fix: str
    """Files and functions."""
    tests: tuple[str, ...]
    taken_out: tuple[Removal, ...]
    without_the_fix: str
    """What the tests showed."""

    @property
    def name(self) -> str:
        return f"{self.finding}: {self.tried}"


@functools.cache
def parts() -> tuple[Part, ...]:
    """All rows of the table."""
    rows = json.loads(TABLE.read_text("utf-8"))
    for row in rows:
        row["tests"] = tuple(row["tests"])
        row["taken_out"] = tuple(Removal(**removal) for removal in row["taken_out"])
    return tuple(Part(**row) for row in rows)


OPTIONS = ("-o", "addopts=", "-q", "-p", "no:cacheprovider")


def environment_of(root: Path) -> dict[str, str]:
    """Tests run at the size of a commit, on the code of this tree."""
    return {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]), LEVEL_VARIABLE: "commit"}


def pytest_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on this tree; it writes no records."""
    environment = {name: value for name, value in os.environ.items() if name != RECORDS_VARIABLE}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *arguments],
        cwd=ROOT,
        env={**environment, **environment_of(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


# --- that they hold -------------------------------------------------------------------------------


def results_of(tests: Iterable[str]) -> dict[str, tuple[str, float]]:
    """Run tests in one call: by node id, passed, failed or skipped, and the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = pytest_run(f"--junitxml={report}", *dict.fromkeys(tests))
        if not report.exists():
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        cases = ElementTree.parse(report).getroot().iter("testcase")  # our own file
        return {_node_id(case): (_outcome(case), float(case.get("time", 0))) for case in cases}


def _node_id(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"


def _outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"


def belongs_to(node_id: str, test: str) -> bool:
    """Whether this is the test, or the test with one of its parameters."""
    return node_id == test or node_id.startswith(f"{test}[")


def summary(results: dict[str, tuple[str, float]]) -> dict[str, dict[str, Any]]:
    """What is recorded: finding -> passed, seconds, tests, what was seen without the fix."""
    found = {}
    for number in NUMBERS:
        rows = [part for part in parts() if part.finding == number]
        tests = sorted({test for part in rows for test in part.tests})
        ran = {
            node_id: result
            for node_id, result in results.items()
            if any(belongs_to(node_id, test) for test in tests)
        }
        outcomes = [outcome for outcome, _ in ran.values()]
        missing = [test for test in tests if not any(belongs_to(each, test) for each in ran)]
        found[str(number)] = {
            "tried": [part.tried for part in rows],
            "passed": bool(outcomes) and set(outcomes) == {"passed"} and not missing,
            "cases": len(outcomes),
            "not_passed": missing + [each for each in ran if ran[each][0] != "passed"],
            "seconds": round(sum(seconds for _, seconds in ran.values()), 2),
            "tests": tests,
            "without_the_fix": {part.tried: part.without_the_fix for part in rows},
        }
    return found


# --- that they fail without the fix ---------------------------------------------------------------


WARM = "numpy pyarrow.parquet torch transformers"
"""Imported once, before the first fork: they cost more than most tests."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How pytest ended, and what it printed."""

    code: int
    text: str

    def unaware(self, part: Part) -> list[str]:
        """Tests of the part that did not fail: all of them, if they could not be run."""
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", self.text, re.MULTILINE)
        ran = self.code == pytest.ExitCode.TESTS_FAILED
        return [
            test for test in part.tests if not ran or not any(belongs_to(f, test) for f in failed)
        ]

    @property
    def errors(self) -> str:
        """The lines in which tests say what is wrong, each once."""
        lines = re.findall(r"^E  +(\S.*)", self.text, re.MULTILINE)
        return "\n".join(dict.fromkeys(lines)) or self.text[-3000:]


def run_without(part: Part) -> Outcome:
    """Run a part's tests in a fork, on a copy of the tree from which its fix is taken out."""
    for name in WARM.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="without-", ignore_cleanup_errors=True) as folder:
        copy, log = Path(folder) / "tree", Path(folder) / "log"
        for name in COPIED:
            _copy(ROOT / name, copy / name)
        for removal in part.taken_out:
            take_out(copy, removal)
        fork = multiprocessing.get_context("fork").Process(
            target=_test, args=(copy, log, ["--tb=short", *part.tests])
        )
        fork.start()
        fork.join(SECONDS)
        fork.kill()  # a hang is noticed by pytest's own time limit, which is shorter
        fork.join()
        return Outcome(code=fork.exitcode or 0, text=log.read_text("utf-8", "replace"))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        hidden = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, target, ignore=hidden)
    else:
        shutil.copy(source, target)


def _test(root: Path, log: Path, arguments: list[str]) -> None:
    """Forget our own modules, and run pytest on another tree."""
    output = log.open("w", buffering=1)
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    sys.stdout = sys.stderr = output
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.split(".")[0] in ("terrella", "tests") or (
            file and Path(file).is_relative_to(ROOT)
        ):
            del sys.modules[name]
    os.environ.pop(RECORDS_VARIABLE, None)
    os.chdir(root)
    os.environ.update(environment_of(root))
    sys.path[:] = [str(root / "src"), str(root), *(p for p in sys.path if not _is_ours(p))]
    # Plugins of pytest are imported already, and that would be a warning.
    warm = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    os._exit(pytest.main([*OPTIONS, *warm, *arguments]))


def _is_ours(path: str) -> bool:
    return Path(path or ".").resolve() in (ROOT, ROOT / "src", ROOT / "tests/attack")


def take_out(root: Path, removal: Removal) -> None:
    path = root / removal.file
    text = path.read_text("utf-8")
    if text.count(removal.old) != 1:
        message = f"{removal.file} has no longer what the table takes out: {removal.old!r}"
        raise ValueError(f"{message}; write the row of findings.json anew")
    path.write_text(text.replace(removal.old, removal.new), "utf-8")


def main(numbers: Sequence[str]) -> int:
    """Take out the fixes of these findings, or of all; returns how many were not noticed."""
    unnoticed = 0
    for part in parts():
        if numbers and str(part.finding) not in numbers:
            continue
        began = time.monotonic()
        outcome = run_without(part)
        unaware = outcome.unaware(part)
        unnoticed += bool(unaware)
        word = f"NOT NOTICED by {unaware}" if unaware else "noticed"
        seconds = time.monotonic() - began
        sys.stdout.write(f"# {part.name}: {word}, {seconds:.0f} s\n{outcome.errors}\n")
        sys.stdout.flush()
    return unnoticed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
