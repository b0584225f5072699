"""An RLVR run on Ray that is killed at any moment and resumed ends with the same weights."""

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
"""Ray's agents try for 60 s to reach the dead control service before they end."""
HERE = str(Path(__file__).parent)
# Imports once (the libraries take longer than the run), then forks a process for each run.
SERVER = """
import json, logging, os, sys, warnings
warnings.simplefilter("ignore")
sys.path.append(HERE)
from pathlib import Path
import ray
import near_world
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.rollout.env_pool import EnvPool
from terrella.show.progress import SilentProgress
from terrella.pipelines.rlvr import Rlvr

def config(out, place, trap=""):
    return Rlvr.Config(
        world=near_world.Near.Config(trap=trap),
        ask="action",
        warmup_examples=384,
        turn_tokens=6,
        max_turns=2,
        evaluate_on=4,
        out=Path(out),
        env_pool=EnvPool.Config(place=place, workers=1, timeout=5.0),
        warmup=SftConfig(batch_size=32, learning_rate=1e-2, warmup_steps=2, save_every=3),
        rlvr=RlvrConfig(steps=8, groups=4, group_size=4, learning_rate=3e-3, save_every=1),
    )

def reply(line):
    sys.stdout.write(f"{line}\\n"); sys.stdout.flush()

reply("ready")
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 1
        log = os.open(request["out"] + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        logging.basicConfig(level=logging.WARNING, stream=os.fdopen(2, "w"), force=True)
        try:
            Rlvr(config(**request)).run(SilentProgress())
            code = 0
        except BaseException:
            logging.exception("died")
        finally:
            os._exit(code)
    reply(child)
    reply(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""".replace("HERE", repr(HERE))


class RunServer:
    """Starts processes that train; each can be killed after some seconds."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
        )
        self.orphans = []
        assert self.read_line() == "ready"

    def read_line(self):
        return self.process.stdout.readline().strip()

    def run(self, out, place="ray", seconds=None, trap=""):
        """Run until it ends or is killed after `seconds`; return the exit code."""
        request = {"out": str(out), "place": place, "trap": str(trap)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        child = int(self.read_line())
        if seconds is not None and not select.select([self.process.stdout], [], [], seconds)[0]:
            descendants = psutil.Process(child).children(recursive=True)
            os.kill(child, signal.SIGKILL)
            self.orphans += descendants
        return int(self.read_line())

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server():
    run_server = RunServer()
    yield run_server
    run_server.close()


@pytest.fixture(scope="module")
def undisturbed(server, tmp_path_factory):
    """A run that is not killed, with its worlds in its own process, and a run's expected time."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    started = time.monotonic()
    assert server.run(out, "inline") == 0, log_of(out)
    seconds = time.monotonic() - started
    norms = [row["grad_norm"] for row in curve(out)]
    assert len(norms) == 8
    assert sum(norm > 0 for norm in norms) > 3, "these tests would pass without training"
    return out, seconds + RAY_STARTS_IN


def log_of(out):
    return out.with_name(out.name + ".log").read_text()


def curve(out):
    return [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]


def steady(rows):
    """The metrics that depend neither on the clock nor on the composition of batches."""
    return [
        {key: row[key] for key in ("reward", "loss", "grad_norm", "entropy", "tokens", "turns")}
        for row in rows
    ]


def weights(out):
    return (out / "model/model.safetensors").read_bytes()


def metrics(out):
    result = json.loads((out / "manifest.json").read_text())["metrics"]
    return result["before"], result["after"], result["baselines"], result["steps"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(60 + 40 * KILLS + 240)
def test_kills_at_random_moments_change_no_result(server, undisturbed, tmp_path):
    whole, seconds = undisturbed
    moments = random.Random(0)
    kills = runs = 0
    while kills < KILLS:
        runs += 1
        out = tmp_path / f"run-{runs}"
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            moment = moments.uniform(0, seconds) if kills < KILLS else None
            code = server.run(out, seconds=moment)
            kills += code == -signal.SIGKILL
        assert code == 0, log_of(out)
        assert weights(out) == weights(whole) and metrics(out) == metrics(whole)
        assert steady(curve(out)) == steady(curve(whole))
    _, left = psutil.wait_procs(server.orphans, timeout=RAY_ENDS_IN)
    assert left == [], "Ray's processes outlived the runs that started them"


@pytest.mark.ray
@pytest.mark.slow
def test_a_world_process_that_is_killed_or_hangs_is_named_and_the_run_continues(server, tmp_path):
    out, trap = tmp_path / "run", tmp_path / "trap"
    trap.mkdir()
    (trap / "kill").touch()
    (trap / "hang").touch()
    assert server.run(out, trap=trap) == 0, log_of(out)
    log, hung = log_of(out), (trap / "hanged").read_text()
    assert "of world near was lost" in log and "is played again from its" in log
    assert f"masked: world near (seed {hung}" in log and "did not answer 'act' within 5 s" in log
    assert metrics(out)[3] == 8
