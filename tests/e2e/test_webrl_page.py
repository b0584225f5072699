"""Follows docs/webrl.md with fewer steps: a run, and its attempts in WebRL's own formats."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

from terrella.recipes import webrl, webrl_language

PAGE = (Path(__file__).parents[2] / "docs/webrl.md").read_text()
SMALL = (
    "phases=1",
    "phase_steps=60",
    "validation=1",
    "test=1",
    "demonstrations=5",
    "imitation_updates=3",
    "width=16",
    "layers=1",
    "base_cache=runs/bases",
)


def run(words, cwd):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_page_can_be_followed(tmp_path):
    first, *others = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    commands = first.strip().splitlines()
    small = [word for setting in SMALL for word in ("--set", setting)]
    shown = run([sys.executable, "-m", "terrella.cli", *commands[0].split()[1:], *small], tmp_path)
    assert "env steps" in shown and (tmp_path / "runs/soko/curriculum.md").exists()
    # A comparison takes minutes and more: only look that it exists.
    for command in [*commands[1:], *re.findall(r"^terrella.*", "\n".join(others), re.M)]:
        assert command.split()[2] in {*dir(webrl), *dir(webrl_language)}, command
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert "Task Instruction: Push every box" in run([sys.executable, "-c", code], tmp_path)
