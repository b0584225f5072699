"""A small text-game world model: SFT, RLVR, all test records, the table, and the resume."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

SMALL = """
import os
os.environ["OMP_NUM_THREADS"] = "1"
import tests.support.quiet_trl
from pathlib import Path
from terrella.recipes.text_games import bytesized32_tiny
from terrella.pipelines.reproduce.pipeline import Reproduce

config = bytesized32_tiny()
def small(arm):
    rlvr = arm.rlvr.replace(steps=min(arm.rlvr.steps, 2), groups=4, group_size=4)
    model = arm.model.replace("tiny-1m", "tiny-0.3m")
    sft = arm.sft.replace(batch_size=2, warmup_steps=3)
    return arm.replace(model=model, states=120, actions=8, sft=sft, rlvr=rlvr)

arms = {name: small(arm) for name, arm in config.arms.items() if name != "sft_all"}
Reproduce(config.replace(arms=arms, seeds=1, out=Path("run"), first=("sft", "exact"))).run(print)
"""


def run(cwd):
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("TERRELLA_BYTESIZED32", None)
    done = subprocess.run(
        [sys.executable, "-c", SMALL], capture_output=True, text=True, cwd=cwd, env=environment
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.slow
def test_every_arm_runs_and_the_same_command_goes_on(tmp_path):
    shown = run(tmp_path)
    table = json.loads((tmp_path / "run/table.json").read_text())
    assert set(table["arms"]) == {
        "sft",
        "exact",
        "task_specific",
        "exact_refill",
        "nearest_neighbour",
    }
    assert shown.count("started") == 5
    bases = list((tmp_path / "run/bases").glob("sft-*/model/config.json"))
    assert len(bases) == 1  # one base for four arms
    metrics = {
        name: json.loads((tmp_path / f"run/{name}-0/manifest.json").read_text())["metrics"]
        for name in table["arms"]
    }
    assert len({len(arm["marks"]) for arm in metrics.values()}) == 1
    sft = metrics["sft"]["test"]
    assert sft["overall"] > 0.1 and sft["invalid"] < 0.5
    assert len(metrics["exact"]["rl"]["reward"]) == 2
    exact, refill = metrics["exact"]["rl"], metrics["exact_refill"]["rl"]
    assert exact["refilled"] == 0 and exact["env_steps"] == 8
    assert 0 < exact["without_spread"] <= 1
    assert refill["refilled"] > 0 and refill["env_steps"] == 8 + refill["refilled"]
    seeds = {(claim["better"], claim["worse"]): claim["seeds"] for claim in table["claims"]}
    assert seeds["exact", "sft"] == 1 and seeds["sft_all", "nearest_neighbour"] == 0
    assert "started" not in run(tmp_path)
