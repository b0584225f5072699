"""The real command: a model learns, and the number goes up."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")


def terrella(*words, cwd):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    command = [sys.executable, "-m", "terrella.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_number_goes_up(tmp_path):
    shown = terrella(
        "rlvr", "tiny_lake_model", "--out", "run", "--set", "rlvr.steps=60", cwd=tmp_path
    )
    metrics = json.loads((tmp_path / "run/manifest.json").read_text())["metrics"]
    rewards = [
        json.loads(line)["reward"]
        for line in (tmp_path / "run/curve.jsonl").read_text().splitlines()
    ]
    assert len(rewards) == 60 and sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.3
    assert (
        metrics["after"]["low"] > metrics["before"]["high"]
    )  # held-out, and the intervals do not touch
    assert (
        metrics["after"]["low"] > metrics["baselines"]["no_change"]
        and "baseline: no_change" in shown
    )


def test_a_dry_run_needs_no_weights_and_names_the_whole_config(tmp_path):
    config = json.loads(
        terrella("rlvr", "tiny_lake_model", "--dry-run", "--set", "rlvr.steps=3", cwd=tmp_path)
    )
    assert config["ask"] == "observation" and config["rlvr"]["steps"] == 3
    assert list(tmp_path.iterdir()) == []
