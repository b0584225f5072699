"""SPA as a whole: every kind of arm in seconds, and (nightly) `--quick` with its claim."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

SMALL = """
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
import tests.support.quiet_trl
from pathlib import Path
from terrella.recipes import find_recipe
from terrella.evals.agents import Evaluate
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.core.types import Split

def small(arm):
    look = Evaluate.Config(instances=8, samples=2)
    sft = arm.self_play.sft.replace(epochs=1)
    played = min(arm.self_play.trajectories, 24)
    return arm.replace(
        model="tiny-0.3m",
        format_examples=64,
        validation=look.replace(split=Split.VALIDATION),
        test=look,
        self_play=arm.self_play.replace(trajectories=played, keep="all", sft=sft),
        max_env_steps=250,
        rlvr=arm.rlvr.replace(groups=4, group_size=4, steps=min(arm.rlvr.steps, 50)),
    )

config = find_recipe(sys.argv[1])()
alike = ("spa_raw", "spa_1500", "spa_3000", "state")  # other sizes and views of what runs anyway
arms = {name: small(arm) for name, arm in config.arms.items() if name not in alike}
claims = (("spa", "vanilla", 1, False),)
config = config.replace(arms=arms, seeds=1, out=Path("run"), claims=claims, at_once=2)
table = Reproduce(config).run(print)
"""


def run(recipe, cwd):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", SMALL, recipe]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.slow
def test_every_arm_runs_within_one_budget_and_the_same_command_goes_on(tmp_path):
    shown = run("spa_frozen_lake", tmp_path)
    table = json.loads((tmp_path / "run/table.json").read_text())
    wanted = {
        "base",
        "vanilla",
        "spa",
        "online",
        "echo",
        "masked",
        "self_belief",
        "spa_tagged",
        "spa_forward",
    }
    assert wanted <= set(table["arms"])
    for name, arm in table["arms"].items():
        (steps,) = arm["env_steps"]
        assert steps == 0 if name == "base" else 250 <= steps < 250 + 16 * 10, name
        assert arm["pass@1"]["mean"] <= arm["pass@2"]["mean"]
    assert shown.count("started") == len(table["arms"])
    victim = tmp_path / "run/spa-0"
    (victim / "manifest.json").unlink()
    again = run("spa_frozen_lake", tmp_path)
    # Only what was lost is done again, from the parts that exist.
    assert again.count("started") == 1
    assert "self-play" not in (tmp_path / "run/spa-0.log").read_text()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    not os.environ.get("TERRELLA_NIGHTLY"), reason="ten minutes of two cores: .ci/nightly"
)
def test_quick_shows_that_self_play_helps(tmp_path):
    command = [
        sys.executable,
        "-m",
        "terrella.cli",
        "reproduce",
        "spa_sokoban",
        "--quick",
        "--jobs",
        "2",
    ]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 3, (done.stdout + done.stderr)[-4000:]  # one seed decides nothing
    better = json.loads((tmp_path / "table.json").read_text())["claims"][0]
    assert (
        (better["better"], better["worse"]) == ("spa", "vanilla")
        and better["mean"] > 0.1
        and better["n"] == 256
    )
    assert "undecided" in done.stdout and "fails" not in done.stdout
    assert "rl, env steps" in (tmp_path / "spa-0.log").read_text()
