"""The README is executed: its Python, its commands, its map, its table."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PACKAGE = ROOT / "src" / "terrella"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_hello_world_runs_and_is_short(tmp_path):
    (code,) = blocks("python")
    script = tmp_path / "hello.py"
    script.write_text(code)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "random_exact=0." in done.stdout


def test_the_map_is_the_tree():
    (tree,) = re.findall(r"^```\n(src/terrella/\n.*?)^```", README, re.M | re.S)
    listed = set(re.findall(r"^  ([\w.]+/?)", tree, re.M))
    rooms = {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert listed == rooms
    for top in re.findall(r"^([\w/]+/)", tree, re.M):
        assert (ROOT / top).is_dir(), top


def commands():
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("terrella ") and " play " not in line]


@pytest.mark.slow
def test_the_commands_work_as_written(tmp_path):
    for command in commands():
        done = subprocess.run(
            [sys.executable, "-m", "terrella.cli", *command.split()[1:]],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert (tmp_path / "runs/lake/manifest.json").exists()


def test_the_numbers_are_those_of_the_results():
    command = [sys.executable, "benchmarks/tables.py", "--check"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0, "run: python benchmarks/tables.py"
