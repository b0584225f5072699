"""Measures worlds, splits, the store and the verifiers; writes results/foundation.json by parts.

    python benchmarks/foundation.py checks splits scaffold collect kills fuzz imports
Any subset can be named; without names all parts are measured.
"""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import common

TRAIN_DRAWS = 100_000
TEST_DRAWS = 20_000
COLLECT = ("collect", "frozen_lake", "--policy", "random", "--transitions")


def run(*arguments, cwd):
    """Run a `terrella` command."""
    return subprocess.run(common.terrella(*arguments), cwd=cwd, capture_output=True, text=True)


def start(*arguments, cwd):
    """Start a `terrella` command and go on."""
    return subprocess.Popen(
        common.terrella(*arguments),
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def checks(folder):
    """`terrella check --all`."""
    with common.Timer() as timer:
        done = run("check", "--all", cwd=folder)
    worlds, broken = re.search(r"(\d+) worlds, (\d+) broken properties", done.stdout).groups()
    return {
        "worlds_and_presets": int(worlds),
        "broken_properties": int(broken),
        "seconds": round(timer.seconds),
    }


def splits(folder):
    """Instances that train and test have in common, for every world."""
    from terrella.commands.check import instances_of
    from terrella.core.types import Split
    from terrella.worlds import builtin_names, world_config

    metrics = {}
    for name in builtin_names():
        world = world_config(name).build()
        train = instances_of(world, Split.TRAIN, range(TRAIN_DRAWS))
        test = instances_of(world, Split.TEST, range(TEST_DRAWS))
        validation = instances_of(world, Split.VALIDATION, range(TEST_DRAWS))
        metrics[name] = {
            "train_draws": TRAIN_DRAWS,
            "train_distinct": len(train),
            "test_draws": TEST_DRAWS,
            "test_distinct": len(test),
            "train_and_test": len(train & test),
            "train_and_validation": len(train & validation),
            "validation_and_test": len(validation & test),
        }
        print(name, metrics[name], flush=True)
    return metrics


def scaffold(folder):
    """`terrella new-world thermostat`, then `terrella check thermostat`."""
    run("new-world", "thermostat", cwd=folder)
    source = (folder / "thermostat/__init__.py").read_text()
    passed = run("check", "thermostat", cwd=folder).returncode == 0
    counter = (common.ROOT / "src/terrella/worlds/counter/__init__.py").read_text()
    return {
        "passes": passed,
        "lines": len(source.splitlines()),
        "counter_lines": len(counter.splitlines()),
    }


def collect(folder):
    """10^5 and 10^6 transitions of frozen_lake: time, rate, peak memory, and reading back."""
    from terrella.data.store import EpisodeStore

    metrics = {}
    for transitions in (10_000, 100_000, 1_000_000):
        out = folder / f"lake-{transitions}"
        seconds, peak = timed_collect(transitions, out, folder)
        read = sum(len(episode.transitions) for episode in EpisodeStore.open(out).episodes())
        size = sum(path.stat().st_size for path in out.rglob("*"))
        metrics[str(transitions)] = {
            "seconds": round(seconds, 1),
            "transitions_per_second": round(transitions / seconds),
            "peak_mib": round(peak / 1024),
            "read_back": read,
            "bytes_per_transition": round(size / read, 1),
        }
        print(metrics, flush=True)
    small, large = (metrics[str(count)]["peak_mib"] for count in (100_000, 1_000_000))
    return {**metrics, "peak_ratio_1e6_to_1e5": round(large / small, 3)}


def timed_collect(transitions, out, folder):
    """Wall seconds and peak resident KiB of one collect command."""
    with common.Timer() as timer:
        child = start(*COLLECT, transitions, "--out", out, cwd=folder)
        _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, "collect failed"
    return timer.seconds, usage.ru_maxrss


def kills(folder, times=20, transitions=300_000):
    """SIGKILL at random moments, resume each time: byte-identical to the uninterrupted run?"""
    whole, interrupted = folder / "whole", folder / "killed"
    with common.Timer() as timer:
        assert run(*COLLECT, transitions, "--out", whole, cwd=folder).returncode == 0
    rng, killed = random.Random(0), 0
    for _ in range(times):
        child = start(*COLLECT, transitions, "--out", interrupted, cwd=folder)
        try:
            child.wait(timeout=0.3 + rng.random() * timer.seconds / 6)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            killed += 1
    assert run(*COLLECT, transitions, "--out", interrupted, cwd=folder).returncode == 0
    expected = file_contents(whole)
    return {
        "kills": killed,
        "transitions": transitions,
        "files": len(expected),
        "byte_identical": file_contents(interrupted) == expected,
    }


def file_contents(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def fuzz(folder):
    """100,000 fuzzed replies per verifier: no crash, no verdict outside [0, 1], no battery win."""
    result = common.run_tests("tests/contract/test_fuzz_verifiers.py", TERRELLA_FUZZ="100000")
    return {"replies_per_verifier": 100_000, **result}


def imports(folder):
    """An import that climbs or crosses, added on purpose, fails the gate."""
    return common.run_tests("tests/unit/test_package.py", "-k", "climbs_or_crosses")


PARTS = {f.__name__: f for f in (checks, splits, scaffold, collect, kills, fuzz, imports)}


def main():
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            metrics = PARTS[name](Path(folder))
        what = PARTS[name].__doc__
        common.write_part("foundation", name, metrics, command=common.command(name), what=what)
        print(name, metrics, flush=True)


if __name__ == "__main__":
    main()
