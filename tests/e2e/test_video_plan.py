"""Planning and learning inside a small video model, from the run to the numbers."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
if importlib.util.find_spec("mujoco") is None:
    pytest.skip("pip install 'terrella[video]'", allow_module_level=True)

from terrella.core.errors import ConfigError
from terrella.core.types import Split
from terrella.pipelines.video.inside import InsideVideo
from terrella.pipelines.video.pipeline import VideoModel
from terrella.recipes.video import video_quick
from terrella.show.progress import SilentProgress
from terrella.worlds.tabletop import Tabletop

ROOT = Path(__file__).parents[2]
PUSH = Tabletop.Config(task="push", size=32)
SMALL = (
    "--tasks push --starts 2 --depth 2 --candidates 3 --iterations 1 --fit-steps 10 "
    "--clone-updates 5 --rounds 1 --episodes 3 --updates 3"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    config = video_quick()
    videos = config.videos.replace(out=folder / "films", episodes=12)
    VideoModel(config.replace(videos=videos, out=folder / "run")).run(SilentProgress())
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_benchmark_writes_every_arm_with_what_it_took(trained, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import common
    import video_plan

    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["video_plan.py"])
    words = [str(trained / "run"), "--videos", str(trained / "films"), *SMALL.split()]
    video_plan.main([*words, "--model", "fitted"])
    (part,) = json.loads((tmp_path / "video_plan.json").read_text()).values()
    assert part["command"].endswith("--tasks push --model fitted --seed 0 --starts 2")
    check_arms(part["arms"])
    assert 0 < part["recorded_success"] < 1 and 0 < part["most_risk"] < 1
    assert part["recorded_steps"]["of the task"] == part["recorded_steps"]["of the model"] > 50
    assert part["settings"]["candidates"] == 3 and str(trained) not in json.dumps(part)
    with pytest.raises(SystemExit, match="no recordings of reach"):
        video_plan.main([*words, "--tasks", "reach"])


def check_arms(arms):
    assert set(arms) == {
        "random",
        "expert",
        "clone",
        *(f"{method} in the {where}" for method in ("cem", "mppi") for where in WHERE),
        *(f"practice in the {where}" for where in WHERE),
    }
    assert all(len(arm["won"]) == 2 and 0 < arm["played"] <= 32 for arm in arms.values())
    takes_real = {name for name, arm in arms.items() if arm["real_steps"]}
    imagines = {name for name, arm in arms.items() if arm["imagined_steps"]}
    assert takes_real == {name for name in arms if name.endswith("in the simulator")}
    assert imagines == {name for name in arms if name.endswith("in the model")}
    for method in ("cem", "mppi"):
        # One decision a step, with at most 3 sequences of 2 steps.
        arm = arms[f"{method} in the model"]
        assert arm["plans"] == arm["played"] and arm["imagined_steps"] <= 6 * arm["plans"]
    assert arms["clone"]["minus_clone"]["mean"] == 0.0


WHERE = ("model", "simulator")


IMPORTS = """
from pathlib import Path
from terrella.core.types import Split
from terrella.evals.policy_eval import evaluate_policy
from terrella.pipelines.video.inside import InsideVideo
from terrella.world_models.planner_continuous import ContinuousPlanner
from terrella.worlds.tabletop import Tabletop
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_three_lines_of_the_page_plan(trained):
    page = (ROOT / "docs/video.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    (lines,) = [block for block in blocks if "InsideVideo" in block]
    first, second, third = lines.strip().splitlines()
    first = first.replace("Config(size=32)", "Config(size=32), fit_steps=20")
    small = 'size=2, method="mppi", depth=2, candidates=3, iterations=1'
    second = second.replace('size=2, method="mppi"', small)
    paths = f"run, videos = Path({str(trained / 'run')!r}), Path({str(trained / 'films')!r})"
    program = [IMPORTS, paths, first, second, f"played = {third}", "print(played.steps)"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert 0 < int(done.stdout.split()[-1]) <= 32


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_world_that_was_not_recorded_is_refused(trained):
    config = InsideVideo.Config(
        run=trained / "run", videos=trained / "films", world=PUSH.replace(task="reach")
    )
    with pytest.raises(ConfigError, match="no recordings of"):
        InsideVideo(config).recordings(Split.TRAIN)
