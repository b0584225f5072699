"""Coverage-guided fuzzing (atheris) of everything that parses what somebody else wrote.

Each input ends in a value or in the target's one error within two CPU seconds. A crash, a hang or
another error fails the test and leaves the input in a file. Nightly, each target has 20 minutes.
Without atheris the committed inputs are mutated blindly, and the record says so.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from campaign import ROOT, record, trials
from fuzz_targets import MAX_LENGTH, TARGETS, atheris, corpus, mutate, run_once

SECONDS = int(os.environ.get("TERRELLA_FUZZ_SECONDS", trials(commit=30, nightly=1200)))
RUNS = trials(commit=2000, nightly=-1)
"""Inputs of a target. At each commit they are the same: only a change can fail."""
SEED = trials(commit=1, nightly=0)
"""Of the mutations; 0 is another one each time."""
FINDINGS = {}
SCRIPT = Path(__file__).with_name("fuzz_targets.py")


@pytest.mark.parametrize("name", TARGETS)
def test_every_committed_input_ends_in_a_value_or_one_error(name):
    for data in corpus(name):
        run_once(name, data)


@pytest.mark.timeout(3 * SECONDS + 120)
@pytest.mark.parametrize("name", TARGETS)
def test_fuzzing_finds_no_crash_and_no_hang(name, tmp_path):
    FINDINGS[name] = _guided(name, tmp_path) if atheris else _blind(name)
    if len(FINDINGS) == len(TARGETS):
        found = {"targets": FINDINGS, "crashes": 0, "hangs": 0}
        record("fuzz", {"guided_by_coverage": atheris is not None, **found})


def _guided(name, folder):
    inputs = folder / "corpus"
    inputs.mkdir()
    command = [sys.executable, str(SCRIPT), name, str(inputs), f"-max_total_time={SECONDS}"]
    command += [f"-runs={RUNS}", f"-seed={SEED}"]
    command += ["-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1"]
    command += [f"-artifact_prefix={folder}/"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    began = time.monotonic()
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if run.returncode != 0:
        kept = [shutil.copy(path, Path.cwd()) for path in folder.glob("*-*") if path.is_file()]
        pytest.fail(f"{name}: input in {kept}\n{run.stdout[-3000:]}\n{run.stderr[-3000:]}")
    executed = re.search(r"number_of_executed_units: (\d+)", run.stderr)
    coverage = re.findall(r"cov: (\d+)", run.stderr)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "inputs": int(executed[1]),
        "edges": int(coverage[-1]),
        "kept_inputs": len(list(inputs.iterdir())),
    }


def _blind(name):
    end = time.monotonic() + SECONDS
    known = corpus(name)
    for count in itertools.count():
        if time.monotonic() > end or count == RUNS:
            return {"seconds": SECONDS, "inputs": count}
        run_once(name, mutate(known[count % len(known)], MAX_LENGTH, seed=count))
