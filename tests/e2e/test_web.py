"""Follows docs/web.md: collects episodes in real Chromium, then runs the code of the page."""

import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")

from terrella.browser.launch import find_chromium
from terrella.core.errors import MissingExtraError, MissingProgramError
from terrella.data.store import EpisodeStore

try:
    find_chromium()
except (MissingExtraError, MissingProgramError) as missing:
    pytest.skip(str(missing), allow_module_level=True)

PAGE = (Path(__file__).parents[2] / "docs/web.md").read_text()


def run(command, cwd):
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return result.stdout


def test_the_page_can_be_followed(tmp_path):
    (line,) = re.findall(r"^terrella (collect .*)$", PAGE, re.M)
    arguments = line.replace("--episodes 20", "--episodes 4").split()
    assert "4" in run([sys.executable, "-m", "terrella.cli", *arguments], tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    shown = run([sys.executable, "-c", code], tmp_path)
    assert '[1] task "' in shown and shown.strip().endswith("True")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ray_workers_with_a_browser_each_collect_what_one_process_does(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="needs the extra: pip install 'terrella[ray]'")
    # Every process below inherits it: of all variables, browsers get those of the locale.
    monkeypatch.setenv("LC_TEST_MARK", str(tmp_path))
    command = [
        sys.executable,
        "-m",
        "terrella.cli",
        "collect",
        "miniwob",
        "--policy",
        "expert",
        "--episodes",
        "12",
        "--set",
        "chunk_episodes=3",
    ]
    run([*command, "--out", "local"], tmp_path)
    run([*command, "--out", "ray", "--workers", "2"], tmp_path)
    local = list(EpisodeStore.open(tmp_path / "local").episodes())
    distributed = list(EpisodeStore.open(tmp_path / "ray").episodes())
    assert len(local) == 12 and local == distributed
    assert all(episode.success for episode in local)
    # Browsers of workers that Ray has ended notice it by themselves.
    assert soon(lambda: not any(left_by(p, str(tmp_path)) for p in psutil.process_iter()))


def soon(holds, seconds=60.0):
    """Whether a condition comes to hold within some seconds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def left_by(process, mark):
    """Whether the process is a browser that was started below the process with this mark."""
    try:
        return "chrom" in process.name() and process.environ().get("LC_TEST_MARK") == mark
    except psutil.Error:
        return False
