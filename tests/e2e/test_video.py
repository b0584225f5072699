"""The whole video path in little: films, tokenizer, fit, verified predictions, and the same again after a kill."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("mujoco") is None:
    pytest.skip("pip install 'terrella[video]'", allow_module_level=True)


def terrella(*words, cwd):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "terrella.cli", *words], cwd=cwd, capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_video_model_from_films_to_verified_frames(tmp_path):
    shown = terrella("train-world-model", "video_quick", "--out", "model", cwd=tmp_path)
    found = json.loads((tmp_path / "model" / "manifest.json").read_text())

    assert "psnr" in shown and (tmp_path / "model" / "model" / "model.safetensors").exists()
    held_out = found["tokenizer"]
    assert held_out["codes_used"] > 4 and held_out["psnr"]["mean"] > 10
    assert {"mae", "mse", "psnr", "ssim", "repeated", "value"} <= found["before"]["means"].keys()
    assert len(found["after"]["clips"]["psnr"]) == 6 and len(found["after"]["by_depth"]) == 4
    rewards = [row["reward"] for row in found["curve"]]
    assert len(rewards) == 2 and all(0 < reward < 1 for reward in rewards)
    assert all(row["mismatch/max"] < 1e-3 for row in found["curve"])  # what was sampled is what was trained on

    again = terrella("train-world-model", "video_quick", "--out", "model", cwd=tmp_path)
    assert again.splitlines()[-1] == shown.splitlines()[-1]
