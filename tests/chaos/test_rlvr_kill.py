"""An RLVR run with its worlds on Ray that is killed at any moment, and resumed, ends with the very same weights."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("trl")
pytest.importorskip("ray")

KILLS = int(os.environ.get("TERRELLA_KILLS", "4"))
RAY_STARTS_IN = 8.0
RAY_ENDS_IN = 150.0
"""Ray's agents try for 60 s to tell a dead control service about a dead node before they end, too."""
HERE = str(Path(__file__).parent)
# Imports once (the libraries take longer than the run), then forks a process for each life.
NURSERY = """
import json, logging, os, sys, warnings
warnings.simplefilter("ignore")
sys.path.append(HERE)
from pathlib import Path
import ray
import near_world
from terrella.engines.trl.rlvr_trainer import RlvrSettings
from terrella.engines.episodes.seats import Seats
from terrella.engines.trl.sft_trainer import SftSettings
from terrella.show.progress import SilentProgress
from terrella.stages.rlvr import Rlvr

def config(out, place, trap=""):
    return Rlvr.Config(
        world=near_world.Near.Config(trap=trap), ask="action", warmup_rows=384, turn_tokens=6, max_turns=2,
        evaluate_on=4, out=Path(out), seats=Seats.Config(place=place, workers=1, timeout=5.0),
        warmup=SftSettings.Config(batch_rows=32, learning_rate=1e-2, warmup_steps=2, save_every=3),
        rlvr=RlvrSettings.Config(steps=8, groups=4, group_size=4, learning_rate=3e-3, save_every=1),
    )

def say(line):
    sys.stdout.write(f"{line}\\n"); sys.stdout.flush()

say("ready")
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 1
        log = os.open(order["out"] + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        logging.basicConfig(level=logging.WARNING, stream=os.fdopen(2, "w"), force=True)
        try:
            Rlvr(config(**order)).run(SilentProgress())
            code = 0
        except BaseException:
            logging.exception("died")
        finally:
            os._exit(code)
    say(child)
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""".replace("HERE", repr(HERE))


class Nursery:
    """Real processes that train; each can be killed after some seconds."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
        )  # fmt: skip
        self.orphans = []
        self.said = lambda: self.process.stdout.readline().strip()
        assert self.said() == "ready"

    def life(self, out, place="ray", seconds=None, trap=""):
        """One run, to its end or its violent death; its exit code."""
        order = {"out": str(out), "place": place, "trap": str(trap)}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        child = int(self.said())
        if seconds is not None and not select.select([self.process.stdout], [], [], seconds)[0]:
            family = psutil.Process(child).children(recursive=True)
            os.kill(child, signal.SIGKILL)
            self.orphans += family
        return int(self.said())

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def nursery():
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(nursery, tmp_path_factory):
    """What the run comes to when nothing happens, with its worlds in its own process; and how long that takes."""
    out, began = tmp_path_factory.mktemp("undisturbed") / "run", time.monotonic()
    assert nursery.life(out, "inline") == 0, log_of(out)
    seconds = time.monotonic() - began
    figures = [row["grad_norm"] for row in curve(out)]
    assert len(figures) == 8 and sum(figure > 0 for figure in figures) > 3, "this test would pass without training"
    return out, seconds + RAY_STARTS_IN


def log_of(out):
    return out.with_name(out.name + ".log").read_text()


def curve(out):
    return [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]


def steady(rows):
    """What no clock and no batch composition has a say in."""
    return [{key: row[key] for key in ("reward", "loss", "grad_norm", "entropy", "tokens", "turns")} for row in rows]


def weights(out):
    return (out / "model/model.safetensors").read_bytes()


def figures(out):
    manifest = json.loads((out / "manifest.json").read_text())
    return manifest["before"], manifest["after"], manifest["baselines"], manifest["steps"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(60 + 40 * KILLS + 240)
def test_kills_at_random_moments_leave_no_trace(nursery, undisturbed, tmp_path):
    (whole, seconds), moments, kills, runs = undisturbed, random.Random(0), 0, 0
    while kills < KILLS:
        runs, out = runs + 1, tmp_path / f"run-{runs}"
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            moment = moments.uniform(0, seconds) if kills < KILLS else None
            code = nursery.life(out, seconds=moment)
            kills += code == -signal.SIGKILL
        assert code == 0, log_of(out)
        assert weights(out) == weights(whole) and figures(out) == figures(whole)
        assert steady(curve(out)) == steady(curve(whole))
    _, left = psutil.wait_procs(nursery.orphans, timeout=RAY_ENDS_IN)
    assert left == [], "Ray's processes outlived the runs that started them"


@pytest.mark.ray
@pytest.mark.slow
def test_a_world_process_that_is_killed_or_hangs_is_named_and_the_run_goes_on(nursery, tmp_path):
    out, trap = tmp_path / "run", tmp_path / "trap"
    trap.mkdir()
    (trap / "kill").touch()
    (trap / "hang").touch()
    assert nursery.life(out, trap=trap) == 0, log_of(out)
    log, hung = log_of(out), (trap / "hanged").read_text()
    assert "of world near, was lost" in log and "is played again from its" in log
    assert f"masked: world near (seed {hung}" in log and "did not answer 'act' within 5 s" in log
    assert figures(out)[3] == 8
