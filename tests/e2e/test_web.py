"""The page docs/web.md, as a person follows it: collect in real Chromium, then the code on the page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs the extra: pip install 'terrella[web]'")

from terrella.browser.host import find_chromium
from terrella.core.errors import MissingExtraError

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
