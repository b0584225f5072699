"""A collection that is killed at any moment and run again leaves the same bytes."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from terrella.data.store import EpisodeStore
from terrella.pipelines.collect.pipeline import Collect
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

KILLS, TRANSITIONS = 20, 40_000
# Imports once, then forks a process for each life: the kills hit the run, and the test is not spent
# on imports.
NURSERY = """
import os, sys
from pathlib import Path
from terrella.policies.basic import Random
from terrella.show.progress import SilentProgress
from terrella.pipelines.collect.pipeline import Collect
from terrella.worlds.counter import Counter

def live(out):
    config = Collect.Config(
        world=Counter.Config(),
        policy=Random.Config(),
        out=Path(out),
        transitions=TRANSITIONS,
        chunk_episodes=40,
    )
    Collect(config).run(SilentProgress())

def say(line):
    sys.stdout.write(f"{line}\\n"); sys.stdout.flush()

for out in sys.stdin:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            live(out.strip())
            code = 0
        finally:
            os._exit(code)
    say(child)
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""".replace("TRANSITIONS", str(TRANSITIONS))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Nursery:
    """Real processes that collect; each can be killed at a moment that `wait` chooses."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def life(self, out, wait=None):
        self.process.stdin.write(f"{out}\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        if wait is not None:
            wait()
            with contextlib.suppress(ProcessLookupError):  # it had ended by itself
                os.kill(child, signal.SIGKILL)
        return int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture
def nursery():
    made = Nursery()
    yield made
    made.close()


def parts_in(out):
    return len(list(out.glob("*.parquet")))


def until_parts(out, more, delay):
    """Waits for the run itself, not for a clock.

    A slow machine is killed at the same places as a fast one.
    """

    def wait():
        wanted, end = parts_in(out) + more, time.monotonic() + 60
        while (
            parts_in(out) < wanted
            and not (out / "manifest.json").exists()
            and time.monotonic() < end
        ):
            time.sleep(0.001)
        time.sleep(delay)

    return wait


@pytest.mark.slow
def test_twenty_kills_at_random_moments_leave_no_trace(tmp_path, nursery):
    moments, kills, hits, runs = random.Random(0), 0, 0, 0
    assert nursery.life(tmp_path / "whole") == 0
    all_parts = parts_in(tmp_path / "whole")
    # On a busy machine most kills come late: more runs are killed then. A run that ends before its
    # next kill is compared, and another one begun.
    while kills < KILLS or (hits <= KILLS // 4 and kills < 5 * KILLS):
        runs, parts, code = runs + 1, [0], -signal.SIGKILL
        out = tmp_path / f"killed-{runs}"
        while code == -signal.SIGKILL:
            more = moments.randint(0, max(2, all_parts // 4))
            enough = kills >= KILLS and hits > KILLS // 4
            moment = until_parts(out, more, moments.uniform(0, 0.02))
            code = nursery.life(out, None if enough or kills >= 5 * KILLS else moment)
            if code == -signal.SIGKILL:
                kills += 1
                parts.append(parts_in(out))
                hits += parts[-1] > 0 and not (out / "manifest.json").exists()
        assert code == 0 and parts == sorted(parts), (
            "every life must keep what the earlier ones had finished"
        )
        assert content(out) == content(tmp_path / "whole")
        EpisodeStore.open(out).verify()
    assert hits > KILLS // 4, (
        f"only {hits} of {kills} kills hit a run between its first part and its end"
    )


class Killed(BaseException):
    """The power goes out: nothing of ours catches it."""


class PowerCut:
    """Cuts the power just before the n-th thing that is done to the disk."""

    def __init__(self, monkeypatch):
        self.left = None
        for where, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")):
            monkeypatch.setattr(where, name, self._counting(where.__dict__[name]))

    def _counting(self, real):
        def operation(*args, **kwargs):
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise Killed
            return real(*args, **kwargs)

        return operation

    def run(self, out, transitions, after):
        self.left = after
        config = {"world": Counter.Config(), "policy": Random.Config(), "chunk_episodes": 5}
        try:
            return Collect(Collect.Config(out=out, transitions=transitions, **config)).run(
                SilentProgress()
            )
        finally:
            self.left = None


def test_every_single_moment_at_the_disk_can_be_the_last(tmp_path, monkeypatch):
    power = PowerCut(monkeypatch)
    power.run(tmp_path / "small", 60, None)
    shutil.copytree(tmp_path / "small", tmp_path / "grown")
    power.run(tmp_path / "grown", 150, None)
    for begin in (None, tmp_path / "small"):  # a fresh collection, and the extension of a whole one
        for moment in range(1000):
            out = tmp_path / f"{begin and begin.name}-{moment}"
            if begin:
                shutil.copytree(begin, out)
            try:
                power.run(out, 150, moment)
            except Killed:
                if begin and not (out / "manifest.json").exists():
                    pytest.fail("an extension made the old store disappear")
                if (out / "manifest.json").exists():
                    EpisodeStore.open(out).verify()
                power.run(out, 150, None)
                assert content(out) == content(tmp_path / "grown"), (
                    f"killed before operation {moment}"
                )
            else:
                assert moment > 10, "nothing was ever cut"
                break


def test_a_crash_while_resuming_is_no_different(tmp_path, monkeypatch):
    power = PowerCut(monkeypatch)
    power.run(tmp_path / "whole", 600, None)
    lives = 0
    for _ in range(200):
        try:
            power.run(
                tmp_path / "cut", 600, 9
            )  # a part takes three operations: two or three parts a life
        except Killed:
            lives += 1
        else:
            break
    assert lives > 3 and content(tmp_path / "cut") == content(tmp_path / "whole")
