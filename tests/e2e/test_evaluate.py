"""`terrella evaluate FOLDER WORLD`: run folders, plain Hugging Face folders, presets; kills."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support import chat_models

from terrella.core.errors import ConfigError, StoreError
from terrella.core.integrity import folder_sha256
from terrella.core.run_folder import read_manifest
from terrella.data.row_journal import read_rows
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.pipelines.evaluate.agents import AgentEvaluation
from terrella.pipelines.evaluate.models import weights_of
from terrella.pipelines.evaluate.talk import agent_settings
from terrella.pipelines.evaluate.world_models import WorldModelEvaluation
from terrella.pipelines.rlvr import Rlvr
from terrella.pipelines.world_model import TrainWorldModel
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter
from terrella.worlds.sokoban import Sokoban

PAGE = (Path(__file__).parents[2] / "docs/evaluate.md").read_text("utf-8")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}


def command(*words):
    return [sys.executable, "-m", "terrella.cli", *map(str, words)]


def terrella(*words, cwd, code=0):
    done = subprocess.run(command(*words), capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT)
    assert done.returncode == code, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def run(settings):
    return settings.build().run(SilentProgress())


def rows(folder, world):
    return (folder / "rows" / f"{world}.jsonl.gz").read_bytes()


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """A run of ours: a counter agent that imitates mostly right actions."""
    folder = tmp_path_factory.mktemp("agent") / "run"
    run(
        Rlvr.Config(
            world=Counter.Config(max_steps=12),
            warmup_examples=256,
            correct_fraction=0.9,
            warmup=SftConfig(batch_size=32, learning_rate=5e-3, warmup_steps=2),
            rlvr=RlvrConfig(steps=1, groups=2, group_size=4),
            turn_tokens=5,
            max_turns=12,
            evaluate_on=4,
            out=folder,
        )
    )
    return folder


def test_a_run_is_evaluated_as_it_was_trained(agent, tmp_path):
    settings = agent_settings(str(agent), {})
    assert settings["turn_tokens"] == 5 and settings["max_turns"] == 12
    shown = terrella(
        *("evaluate", agent, "counter", "--instances", "10", "--samples", "4", "--out", "out"),
        cwd=tmp_path,
    )
    assert "success (pass@1)" in shown and "well-formed replies" in shown
    manifest = read_manifest(tmp_path / "out")
    assert manifest.config["worlds"]["counter"]["max_steps"] == 12  # the world of the run
    assert manifest.metrics["model"]["sha256"] == folder_sha256(agent / "model")
    scores = manifest.metrics["worlds"]["counter"]
    assert scores["well_formed"]["mean"] > 0.2  # a few steps of imitation taught it the form
    assert 0 < scores["reference"]["random"]["1"] < scores["reference"]["random"]["4"] < 1
    first = read_rows(tmp_path / "out" / "rows" / "counter.jsonl.gz")[0]
    assert first["replies"] and len(first["episode"]["steps"]) == first["steps"]


def test_a_plain_hugging_face_folder_is_evaluated(tmp_path):
    plain_folder = chat_models.plain_folder(tmp_path / "model")
    settings = AgentEvaluation.Config(
        model=str(plain_folder),
        worlds={"counter": Counter.Config(max_steps=3)},
        instances=3,
        samples=2,
        turn_tokens=8,
        out=tmp_path / "out",
    )
    scores = run(settings).worlds["counter"]
    assert scores.judged == [2, 2, 2] and scores.well_formed.mean == 0.0  # it is untrained
    assert scores.valid_actions.mean == 0.0 and scores.usage.completion_tokens > 0
    # Another model under the same name is refused, finished or not.
    (plain_folder / "generation_config.json").write_text("{}")
    with pytest.raises(StoreError, match="another model"):
        run(settings)
    (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(StoreError, match="another model"):
        run(settings)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no model"):
        weights_of(str(tmp_path))


def test_pass_at_64_on_sokoban_twice_the_same(tmp_path):
    settings = AgentEvaluation.Config(
        model="tiny-0.3m",
        worlds={"sokoban": Sokoban.Config(max_steps=3)},
        instances=4,
        samples=64,
        turn_tokens=4,
        out=tmp_path / "first",
    )
    first = run(settings).worlds["sokoban"]
    assert list(first.passes) == ["1", "2", "4", "8", "16", "32", "64"]
    assert first.reference is not None and list(first.reference.random) == list(first.passes)
    second = run(settings.replace(out=tmp_path / "second", concurrency=7)).worlds["sokoban"]
    assert second == first
    assert rows(tmp_path / "first", "sokoban") == rows(tmp_path / "second", "sokoban")


def test_a_killed_evaluation_goes_on_and_leaves_the_same_rows(agent, tmp_path):
    words = (
        *("evaluate", agent, "counter", "--instances", "12", "--samples", "8"),
        *("--set", "world.max_steps=3", "--concurrency", "2", "--out"),
    )
    terrella(*words, "whole", cwd=tmp_path)
    journal = tmp_path / "killed" / "rows" / "counter.rows"
    kept = 0
    for wanted in (5, 40):
        process = subprocess.Popen(
            command(*words, "killed"),
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            time.sleep(0.005)
            if journal.exists() and journal.read_bytes().count(b"\n") >= wanted:
                process.send_signal(signal.SIGKILL)
                process.wait()
        assert process.returncode == -signal.SIGKILL, "it finished before it was killed"
        assert journal.read_bytes().count(b"\n") >= max(kept, wanted)
        kept = journal.read_bytes().count(b"\n")
    shown = terrella(*words, "killed", cwd=tmp_path)
    assert "success (pass@1)" in shown and not journal.exists()
    assert rows(tmp_path / "killed", "counter") == rows(tmp_path / "whole", "counter")
    metrics = [read_manifest(tmp_path / name).metrics for name in ("killed", "whole")]
    assert metrics[0] == metrics[1]


def test_a_world_model_of_ours_is_evaluated_beside_no_change(tmp_path):
    run(
        TrainWorldModel.Config(
            world=Counter.Config(goals=4, away=2),
            transitions=1500,
            sft=SftConfig(epochs=3, batch_size=32, learning_rate=5e-3),
            out=tmp_path / "run",
        )
    )
    shown = terrella(
        *("evaluate", "run", "counter", "--instances", "2", "--out", "out"),
        *("--horizon", "3", "--dry-run"),
        cwd=tmp_path,
    )
    assert json.loads(shown)["horizon"] == 3  # a world model is asked to predict
    settings = WorldModelEvaluation.Config(
        model=str(tmp_path / "run"),
        worlds={"counter": Counter.Config(goals=40, away=2)},
        instances=8,
        turn_tokens=128,
        horizon=3,
        out=tmp_path / "out",
    )
    scores = run(settings).worlds["counter"]
    assert scores.invalid.mean < 0.5 and len(scores.horizon) == 3
    assert scores.changed.no_change.mean == 0.0 and scores.unchanged is None
    assert run(settings.replace(out=tmp_path / "again")).worlds["counter"] == scores


def test_the_python_of_the_page_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT
    )
    assert done.returncode == 0 and "optimal=1.0" in done.stdout, done.stderr[-2000:]


def test_the_first_command_of_the_page_resolves(tmp_path):
    block = re.findall(r"```bash\n(.*?)```", PAGE, re.S)[0]
    config = json.loads(terrella(*block.split()[1:], "--dry-run", cwd=tmp_path))
    assert config["samples"] == 64 and set(config["worlds"]) == {"sokoban", "frozen_lake:4x4_slip"}
