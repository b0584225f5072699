"""From an RLDS shard, through the page's import command, to a trained video model."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
pytest.importorskip("av", reason="pip install 'terrella[video]'")
from tests.support.made_rlds import rt1_record, video

from terrella.data.store import EpisodeStore

PAGE = (Path(__file__).parents[2] / "docs/video.md").read_text()
SMALL = ("clips=16", "rlvr.steps=1", "evaluate_on=1", "videos.trainer.steps=20")


def terrella(words, cwd):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    command = [sys.executable, "-m", "terrella.cli", *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=env)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def imported(tmp_path):
    """The page's import command on a shard of RT-1's columns, with smaller frames."""
    (line,) = re.findall(r"^terrella (import rlds \S+ --out runs/rt1 .*)$", PAGE, re.M)
    shard = tmp_path / line.split()[2] / "fractal-train.tfrecord-00000-of-00001"
    shard.parent.mkdir(parents=True)
    rng = np.random.default_rng(0)
    actions = [rng.normal(size=(6, 13)) for _ in range(24)]
    shard.write_bytes(
        b"".join(rt1_record(video(6, seed=n), each) for n, each in enumerate(actions))
    )
    status, shown = terrella(line.replace("size=256,320", "size=32,32").split(), tmp_path)
    assert status == 0 and "frames of 32 x 32 x 3" in shown, shown
    return tmp_path, actions


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_shard_becomes_a_trained_model(imported):
    folder, actions = imported
    episodes = list(EpisodeStore.open(folder / "runs/rt1").episodes())
    assert len(episodes) == len(actions)
    read = np.array([float(x) for x in episodes[3].transitions[2].action.split()])
    whole = [*actions[3][2]]
    whole[7:10] = [int(x) for x in whole[7:10]]  # terminate_episode
    assert np.allclose(read, whole, rtol=1e-5)

    words = ["videos.worlds=", "videos.stores=runs/rt1", "videos.action_numbers=13", *SMALL]
    settings = [word for each in words for word in ("--set", each)]
    train = ["train-world-model", "video_quick", "--out", "runs/video", *settings]
    status, shown = terrella(train, folder)
    assert status == 0 and "psnr, after" in shown, shown[-4000:]
    assert (folder / "runs/video/model/model.safetensors").exists()
    metrics = json.loads((folder / "runs/video/manifest.json").read_text())["metrics"]
    assert metrics["after"]["means"]["psnr"]["mean"] > 5

    other = ["rt1_single_step", "--out", "runs/rt1_model"]
    status, shown = terrella(["train-world-model", *other], folder)
    assert status != 0 and "its frames are 32 x 32; the tokenizer" in shown and "256 x 320" in shown
    assert "Traceback" not in shown and not (folder / "runs/rt1_model").exists()
