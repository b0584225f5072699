"""The page docs/web.md, as a person follows it: collect in real Chromium, then the code on the page."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")

from terrella.browser.host import find_chromium
from terrella.core.errors import MissingExtraError
from terrella.data.store import EpisodeStore

try:
    find_chromium()
except MissingExtraError as missing:
    pytest.skip(str(missing), allow_module_level=True)

PAGE = (Path(__file__).parents[2] / "docs/web.md").read_text()


def run(words, cwd):
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_the_page_can_be_followed(tmp_path):
    (line,) = re.findall(r"^terrella (collect .*)$", PAGE, re.M)
    words = line.replace("--episodes 20", "--episodes 4").split()
    assert "4" in run([sys.executable, "-m", "terrella.cli", *words], tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    shown = run([sys.executable, "-c", code], tmp_path)
    assert '[1] task "' in shown and shown.strip().endswith("True")


@pytest.mark.ray
@pytest.mark.slow
def test_two_ray_workers_with_a_browser_each_collect_what_one_process_does(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="needs the extra: pip install 'terrella[ray]'")
    monkeypatch.setenv("WHO_STARTED_IT", str(tmp_path))  # every process below inherits it
    words = [sys.executable, "-m", "terrella.cli", "collect", "miniwob", "--policy", "expert", "--episodes", "12",
             "--set", "chunk_episodes=3"]  # fmt: skip
    run([*words, "--out", "one"], tmp_path)
    run([*words, "--out", "two", "--workers", "2"], tmp_path)
    one, two = (list(EpisodeStore.open(tmp_path / name).episodes()) for name in ("one", "two"))
    assert len(one) == 12 and one == two and all(episode.success for episode in one)
    assert not [process for process in psutil.process_iter() if left_by(process, str(tmp_path))]


def left_by(process, mark):
    """Whether a browser that still runs was started by whoever set the mark."""
    try:
        return "chrom" in process.name() and process.environ().get("WHO_STARTED_IT") == mark
    except psutil.Error:
        return False
