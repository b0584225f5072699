"""README and docs are executed: their Python, their commands, the map, the tables, the links."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import terrella.cli  # noqa: F401  registers the commands
from terrella.cli.app import app
from terrella.recipes import all_recipes
from terrella.worlds import builtin_names

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
FIRST_WORLD = (ROOT / "docs/first_world.md").read_text("utf-8")
PACKAGE = ROOT / "src" / "terrella"
PAGES = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docker/README.md")
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
README_LINES = 130
"""Without the table of numbers, which is written by a script."""


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def commands(text, language="bash"):
    """The terrella commands of a page, with continued lines joined and comments dropped."""
    joined = [block.replace("\\\n", " ") for block in blocks(text, language)]
    lines = [line.split(" #")[0].strip() for block in joined for line in block.splitlines()]
    return [line for line in lines if line.startswith("terrella ")]


def notebook_commands(page):
    """The terrella commands of a page's notebook: what runs in a terminal is a comment there."""
    notebook = json.loads((ROOT / f"docs/notebooks/{page}.ipynb").read_text("utf-8"))
    lines = [line for cell in code_cells(notebook) for line in cell.splitlines()]
    return [line[1:].split(" #")[0].strip() for line in lines if line.startswith("!terrella ")]


def code_cells(notebook):
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(command, folder, **more):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(
        [sys.executable, "-m", "terrella.cli", *shlex.split(command)[1:]],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )
    return done.returncode, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


# --- the README -----------------------------------------------------------------------------------


def test_the_readme_is_short_and_begins_with_the_benefit_and_a_picture():
    without_table = re.sub(r"<!-- numbers.*?/numbers -->", "", README, flags=re.S)
    assert len(without_table.splitlines()) <= README_LINES
    top = README.splitlines()[:14]
    assert top[2].startswith("**") and any("docs/pictures/" in line for line in top)


@pytest.mark.slow
def test_the_quickstart_ends_in_a_page_to_look_at(tmp_path):
    """As written, with less of everything."""
    pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
    less = {
        "train-world-model": "transitions=600 sft.epochs=1",
        "certify": "calibration=60 held_out=60 horizon_episodes=4 depth=2 exploited_on=2"
        " plan_depth=1 samples=2 ranked_on=2",
        "view": "forked=1",
    }
    quickstart = README[README.index("## Quickstart") : README.index("## Which of")]
    shown = ""
    for command in commands(quickstart):
        name = command.split()[1]
        settings = [f"--set {setting}" for setting in less[name].split()]
        code, shown = run(" ".join([command, *settings]), tmp_path)
        assert code == (name == "certify"), shown  # so small a model is refused, with exit code 1
    page = tmp_path / "runs/lake/view/view.html"
    assert page.stat().st_size > 40_000 and "view.html" in shown
    assert "NOT CERTIFIED" in (tmp_path / "runs/lake/certificate/certificate.html").read_text()


def test_the_numbers_are_those_of_the_results():
    command = [sys.executable, "benchmarks/tables.py", "--check"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0, "run: python benchmarks/tables.py"


def test_the_list_of_recipes_is_that_of_the_registry():
    command = [sys.executable, "benchmarks/gallery.py", "--check"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0, "run: python benchmarks/gallery.py"


def test_the_notebooks_are_those_of_the_pages():
    """So a test that runs the commands of a page has run its notebook."""
    command = [sys.executable, "benchmarks/notebooks.py", "--check"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0, "run: python benchmarks/notebooks.py"


# --- the first world ------------------------------------------------------------------------------


def test_the_first_world_runs_and_is_short(tmp_path):
    (code,) = blocks(FIRST_WORLD, "python")
    notebook = json.loads((ROOT / "docs/notebooks/first_world.ipynb").read_text("utf-8"))
    assert code_cells(notebook)[0] == code.strip()
    script = tmp_path / "hello.py"
    script.write_text(code)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "random play wins" in done.stdout


@pytest.mark.slow
def test_the_first_commands_work_as_written(tmp_path):
    """Also of their notebooks: the same run."""
    for page in ("first_world", "train", "start_research"):
        text = (ROOT / f"docs/{page}.md").read_text("utf-8")
        of_page = commands(text)
        for code in blocks(text, "python"):
            if named := re.match(r"# (\w+\.py)\n", code):  # a notebook writes it, too
                (tmp_path / named[1]).write_text(code, "utf-8")
        of_notebook = notebook_commands(page)
        assert of_notebook == [command for command in of_page if " play " not in command]
        for command in of_notebook:
            code, shown = run(command, tmp_path)
            assert code == 0, shown
    assert (tmp_path / "runs/episodes/manifest.json").exists()


# --- every page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists(page):
    """Names of commands, recipes, worlds and options are those of the command line."""
    text = page.read_text("utf-8")
    inline = re.findall(r"`(terrella [^`\n]+)`", text)
    for line in [*commands(text), *inline]:
        words = line.split("(")[0].split()
        name = words[1] if len(words) > 1 else "--help"
        if name.startswith("-") or name.isupper() or not re.fullmatch(r"[\w-]+", name):
            continue
        if "|" not in line:
            assert name in app.names, line
        if name in ("rlvr", "train-world-model", "reproduce") and len(words) > 2:
            assert known_recipe(words[2]), line
        if name in ("collect", "check", "play") and len(words) > 2:
            assert known_world(words[2]), line


def test_no_page_gives_a_tiny_recipe_a_real_model():
    """Its replies are too short and its learning rates too high for one."""
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [*text.splitlines(), *commands(text)]
        assert [line for line in lines if re.search(r"rlvr tiny_\w+ .*model=", line)] == [], page


def test_a_folder_is_written_by_one_command_on_all_pages():
    """A reader of two pages does not meet a folder that the other page filled."""
    written = {}
    for page in PAGES:
        text = page.read_text("utf-8")
        for line in [*commands(text), *re.findall(r"`(terrella [^`\n]+)`", text)]:
            if out := re.search(r"--out (runs/\S+)", line):
                written.setdefault(out[1], set()).add(" ".join(line.split()[1:3]))
    assert len(written) > 10
    assert {folder: told for folder, told in written.items() if len(told) > 1} == {}


def known_recipe(name):
    placeholder = name.isupper() or name.startswith(("-", "...", "<")) or "." in name
    return placeholder or name in all_recipes()


def known_world(name):
    placeholder = name.isupper() or name.startswith("-") or not name.islower()
    bare = name.partition(":")[0].rstrip(".,;")
    written_by_the_page = {"thermostat", "cliff_walking", "elevator"}
    return placeholder or bare in builtin_names() or bare in written_by_the_page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_map_is_the_tree():
    text = (ROOT / "docs/map.md").read_text("utf-8")
    (tree,) = re.findall(r"^```\n(src/terrella/\n.*?)^```", text, re.M | re.S)
    listed = set(re.findall(r"^  ([\w.]+/?)", tree, re.M))
    rooms = {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert listed == rooms
    for top in re.findall(r"^([\w/]+/)", tree, re.M):
        assert (ROOT / top).is_dir(), top
