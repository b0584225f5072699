"""The example, as a person follows it: the commands in its docstring, with less of everything."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

EXAMPLE = Path(__file__).parents[2] / "examples/elevator.py"
LESS = {
    "train-world-model": "transitions=1500 sft.epochs=4 sft.learning_rate=3e-3",
    "certify": "calibration=40 held_out=40 horizon_episodes=10 depth=2 exploited_on=2"
    " plan_depth=2 samples=2",
    "plan": "planner.depth=1 instances=2",
}


def commands():
    """Those of the docstring, without what is said of them."""
    lines = [line.split("#")[0].split() for line in EXAMPLE.read_text().splitlines()]
    return [words[1:] for words in lines if words[:1] == ["terrella"]]


@pytest.mark.slow
def test_an_env_of_ones_own_is_checked_modelled_certified_and_planned_in(tmp_path):
    shutil.copy(EXAMPLE, tmp_path)
    shown = {}
    for name, *rest in commands():
        less = [word for setting in LESS.get(name, "").split() for word in ("--set", setting)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
        command = [sys.executable, "-m", "terrella.cli", name, *rest, *less]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        # so small a model is not certified, and says so
        assert done.returncode == (name == "certify"), (done.stdout + done.stderr)[-4000:]
        shown[name] = done.stdout
    assert "0 broken properties" in shown["check"] and "success: random" in shown["plan"]
    assert "expert" not in shown["plan"]  # there is none, and none is made up
    found = json.loads((tmp_path / "runs/elevator/certificate/certificate.json").read_text())
    assert (
        found["about"]["world"]["max_steps"] == 20
    )  # as it was fitted, not as the world is by default
    assert list(found["about"]["policies"]) == ["random"] and found["ranking"] is None
    model, lazy = (found["one_step"]["all"][name]["mean"] for name in ("model", "no_change"))
    assert model > lazy
