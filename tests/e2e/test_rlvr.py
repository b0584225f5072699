"""The real command: a model learns, and the number goes up."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from terrella.core.metric import Metric

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")


def terrella(*words, cwd):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    command = [sys.executable, "-m", "terrella.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def unseen_seed():
    """A seed that nobody has tuned on: from the commit, so another one for every change."""
    root = Path(__file__).parents[2]
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    commit = done.stdout.strip() or hashlib.sha256((root / "README.md").read_bytes()).hexdigest()
    return 10_000 + int(commit[:8], 16) % 90_000


@pytest.mark.slow
def test_the_number_goes_up(tmp_path):
    """On a seed that it has not seen. How far it goes up is for `benchmarks/teaching.py`."""
    seed = unseen_seed()
    settings = ["--set", "rlvr.steps=60", "--set", f"seed={seed}"]
    shown = terrella("rlvr", "tiny_lake_model", "--out", "run", *settings, cwd=tmp_path)
    metrics = json.loads((tmp_path / "run/manifest.json").read_text())["metrics"]
    lines = (tmp_path / "run/curve.jsonl").read_text().splitlines()
    rewards = [json.loads(line)["reward"] for line in lines]
    assert len(rewards) == 60
    first, last = sum(rewards[:10]) / 10, sum(rewards[-10:]) / 10
    assert last > first + 0.05, (seed, first, last)
    before, after = (
        json.loads((tmp_path / f"run/{part}.json").read_text())["value"]["instances"]
        for part in ("before", "after")
    )
    # Held out, paired by instance, each instance once.
    assert before.keys() == after.keys() and len(after) == metrics["after"]["n"] > 50
    rise = Metric.of([after[name] - before[name] for name in after])
    assert rise.low > 0.05, (seed, rise)
    assert metrics["baselines"]["no_change"] < 0.5 and "baseline: no_change" in shown


def test_a_dry_run_needs_no_weights_and_names_the_whole_config(tmp_path):
    config = json.loads(
        terrella("rlvr", "tiny_lake_model", "--dry-run", "--set", "rlvr.steps=3", cwd=tmp_path)
    )
    assert config["ask"] == "observation" and config["rlvr"]["steps"] == 3
    assert list(tmp_path.iterdir()) == []


def test_one_model_learns_several_worlds(tmp_path):
    settings = ["warmup_examples=200", "rlvr.steps=2", "rlvr.groups=4", "evaluate_on=32"]
    sets = [word for setting in settings for word in ("--set", setting)]
    shown = terrella("rlvr", "tiny_mixed", "--out", "run", *sets, cwd=tmp_path)
    metrics = json.loads((tmp_path / "run/manifest.json").read_text())["metrics"]
    worlds = {"frozen_lake", "counter"}
    assert metrics["before_by_world"].keys() == metrics["after_by_world"].keys() == worlds
    assert metrics["after"]["n"] == sum(each["n"] for each in metrics["after_by_world"].values())
    rows = [json.loads(line) for line in (tmp_path / "run/curve.jsonl").read_text().splitlines()]
    for row in rows:
        mean = sum(row[f"reward/{world}"] for world in worlds) / 2
        assert abs(mean - row["reward"]) < 1e-6
    for world in worlds:
        assert metrics["baselines"][f"expert/{world}"] == 1.0
        assert f"{world}: before, after:" in shown
