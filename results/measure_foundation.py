"""Measures the figures of the foundation and writes them to results/foundation.json, part by part.

python results/measure_foundation.py checks splits scaffold collect kills fuzz imports     (any subset)
"""

import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = Path(__file__).parent / "foundation.json"
TRAIN_DRAWS, TEST_DRAWS = 100_000, 20_000


def terrella(*words, cwd):
    return [sys.executable, "-m", "terrella.cli", *map(str, words)], {"cwd": cwd, "capture_output": True, "text": True}


def run(*words, cwd):
    command, options = terrella(*words, cwd=cwd)
    return subprocess.run(command, **options)


def checks(folder):
    """`terrella check --all`."""
    began = time.time()
    done = run("check", "--all", cwd=folder)
    worlds, broken = re.search(r"(\d+) worlds, (\d+) broken properties", done.stdout).groups()
    return {"worlds_and_presets": int(worlds), "broken_properties": int(broken), "seconds": round(time.time() - began)}


def splits(folder):
    """Instances that train and test have in common, for every world."""
    from terrella.core.types import Split
    from terrella.stages.check import instances_of
    from terrella.worlds import builtin_names, world_config

    found = {}
    for name in builtin_names():
        world = world_config(name).build()
        train = instances_of(world, Split.TRAIN, range(TRAIN_DRAWS))
        test = instances_of(world, Split.TEST, range(TEST_DRAWS))
        validation = instances_of(world, Split.VALIDATION, range(TEST_DRAWS))
        found[name] = {
            "train_draws": TRAIN_DRAWS, "train_distinct": len(train), "test_draws": TEST_DRAWS,
            "test_distinct": len(test), "train_and_test": len(train & test),
            "train_and_validation": len(train & validation), "validation_and_test": len(validation & test),
        }  # fmt: skip
        print(name, found[name], flush=True)
    return found


def scaffold(folder):
    """`terrella new-world thermostat`, then `terrella check thermostat`."""
    run("new-world", "thermostat", cwd=folder)
    source = (folder / "thermostat/__init__.py").read_text()
    passed = run("check", "thermostat", cwd=folder).returncode == 0
    counter = (ROOT / "src/terrella/worlds/counter/__init__.py").read_text()
    return {"passes": passed, "lines": len(source.splitlines()), "counter_lines": len(counter.splitlines())}


def collect(folder):
    """10^5 and 10^6 transitions of frozen_lake: time, rate, peak memory, and reading back."""
    from terrella.data.store import EpisodeStore

    found = {}
    for transitions in (10_000, 100_000, 1_000_000):
        out = folder / f"lake-{transitions}"
        seconds, peak = timed_collect(transitions, out, folder)
        read = sum(len(episode.transitions) for episode in EpisodeStore.open(out).episodes())
        size = sum(path.stat().st_size for path in out.rglob("*"))
        found[str(transitions)] = {
            "seconds": round(seconds, 1), "transitions_per_second": round(transitions / seconds),
            "peak_mib": round(peak / 1024), "read_back": read, "bytes_per_transition": round(size / read, 1),
        }  # fmt: skip
        print(found, flush=True)
    peaks = [found[str(n)]["peak_mib"] for n in (100_000, 1_000_000)]
    return {**found, "peak_ratio_1e6_to_1e5": round(peaks[1] / peaks[0], 3)}


def timed_collect(transitions, out, folder):
    """Wall seconds and peak resident KiB of one collect command."""
    words = ["collect", "frozen_lake", "--policy", "random", "--transitions", transitions, "--out", out]
    command, _ = terrella(*words, cwd=folder)
    began = time.time()
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, "collect failed"
    return time.time() - began, usage.ru_maxrss


def kills(folder, times=20, transitions=300_000):
    """SIGKILL at random moments, resume each time: byte-identical to the uninterrupted run?"""
    words = ["collect", "frozen_lake", "--policy", "random", "--transitions", transitions]
    whole, broken = folder / "whole", folder / "killed"
    began = time.time()
    assert run(*words, "--out", whole, cwd=folder).returncode == 0
    duration, rng, killed = time.time() - began, random.Random(0), 0
    command, _ = terrella(*words, "--out", broken, cwd=folder)
    for _ in range(times):
        child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            child.wait(timeout=0.3 + rng.random() * duration / 6)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            killed += 1
    assert run(*words, "--out", broken, cwd=folder).returncode == 0
    first, second = ({p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in (whole, broken))
    return {"kills": killed, "transitions": transitions, "files": len(first), "byte_identical": first == second}


def tests(*words, **environment):
    """Run some tests; whether they passed, and pytest's last line."""
    began = time.time()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1]
    return {"passed": done.returncode == 0, "result": last, "seconds": round(time.time() - began)}


def fuzz(folder):
    """100,000 fuzzed replies per verifier: no crash, no verdict outside [0, 1], no battery win."""
    found = tests("tests/contract/test_fuzz_verifiers.py", TERRELLA_FUZZ="100000")
    return {"replies_per_verifier": 100_000, **found}


def imports(folder):
    """An import that climbs or crosses, added on purpose, fails the gate."""
    return tests("tests/unit/test_package.py", "-k", "climbs_or_crosses")


PARTS = {f.__name__: f for f in (checks, splits, scaffold, collect, kills, fuzz, imports)}


def main():
    record = json.loads(OUT.read_text()) if OUT.exists() else {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    for name in sys.argv[1:] or PARTS:
        folder = Path(tempfile.mkdtemp())
        try:
            found = PARTS[name](folder)
        finally:
            shutil.rmtree(folder)
        command = f"python results/measure_foundation.py {name}"
        record[name] = {"what": PARTS[name].__doc__, "command": command, "commit": commit, "machine": machine, **found}
        OUT.write_text(json.dumps(record, indent=1) + "\n")
        print(name, found, flush=True)


if __name__ == "__main__":
    main()
