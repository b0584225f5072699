"""The page docs/video.md, as a person follows it: from videos to policies inside the model."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
# Not imported here: the world says first how to draw.
if importlib.util.find_spec("mujoco") is None:
    pytest.skip("pip install 'terrella[video]'", allow_module_level=True)

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "video.md").read_text()


def run(words, cwd):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, env=env)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def terrella(line, cwd):
    return run([sys.executable, "-m", "terrella.cli", *line.split()[1:]], cwd)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_can_be_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the recipe's folders are relative to it
    first, recordings, rt1, policies = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    assert recordings in (DOCS / "start_robots.md").read_text()
    assert rt1.startswith("terrella import rlds")  # tests/e2e/test_video_rlds.py follows it
    install, train, look = first.strip().splitlines()
    assert install.startswith("pip install")
    assert "psnr, after" in terrella(train, tmp_path)
    check_the_folder(tmp_path / "runs/video")
    assert "1 page" in terrella(look, tmp_path)

    shown = terrella(policies.strip(), tmp_path)
    for task in ("tabletop", "tabletop:reach"):
        assert f"{task}: mean absolute error" in shown and f"{task}: safe horizon" in shown

    write_robot(tmp_path / "my_robot", tmp_path / "runs/video_quick_films")
    imported, trained, looked = (
        terrella(each, tmp_path) for each in recordings.splitlines() if each
    )
    assert "frames of 32 x 32 x 3" in imported and "psnr, after" in trained
    assert "1 page" in looked and (tmp_path / "runs/my_video/view").is_dir()


def write_robot(folder, films):
    """A user's LeRobot folder: the films of the example, with some in every split."""
    from terrella.data.lerobot import write_lerobot
    from terrella.data.store import EpisodeStore

    stores = [path for split in ("data", "held_out") for path in (films / split).iterdir()]
    episodes = [episode for store in stores for episode in EpisodeStore.open(store).episodes()]
    assert len(episodes) == 10
    write_lerobot(folder, episodes * 3)


def check_the_folder(folder):
    from terrella.commands.view import View
    from terrella.show.runs import read_run

    run = read_run(folder)
    metrics = run.metrics
    assert (folder / "model" / "model.safetensors").exists()
    tokenizer = metrics["tokenizer"]
    assert tokenizer["codes_used"] > 4 and tokenizer["metrics"]["psnr"]["mean"] > 10
    assert {"mae", "mse", "psnr", "ssim", "repeated", "value"} <= metrics["before"]["means"].keys()
    assert len(metrics["after"]["clips"]["psnr"]) == 3  # of 4 episodes one is too short
    assert len(metrics["after"]["by_depth"]) == 4

    videos = folder.with_name("video_quick_films")
    book = View(View.Config(run=folder, predicted=3, videos=videos)).build_page().data()
    steps = [step for episode in book["episodes"] for step in episode["steps"]]
    assert (
        len(book["episodes"]) == 3
        and len(steps) == 12
        and all(0 < step["risk"] < 1 for step in steps)
    )
    assert all(0 <= step["predicted"]["verdict"]["value"] < 1 for step in steps)
    assert len(metrics["reward"]) == 2 and all(0 <= reward < 1 for reward in metrics["reward"])
    # What was sampled is what was trained on.
    # Where no prediction earns anything, a step trains on nothing, and compares nothing.
    assert all(row.get("mismatch/max", 0.0) < 1e-3 for row in run.curve)
