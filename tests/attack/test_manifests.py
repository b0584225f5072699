"""Hostile manifests, stores and hub repositories against every command that reads one.

Whatever a folder says, a command starts no process, imports no foreign module, opens no socket and
writes nothing outside of its folder.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

for extra in ("torch", "huggingface_hub", "matplotlib"):
    pytest.importorskip(extra, reason="needs the extras: pip install 'terrella[train,hub,plots]'")

from tests.attack.campaign import LEVEL, ROOT, record
from tests.attack.hostile import CASES, MODULE, SCRIPT, write_case
from tests.support.fake_hub import fake_hub

REPORTED, PULLED = (8, 6) if LEVEL == "commit" else (1, 1)
"""Reports draw plots and pulls speak HTTP: per commit only every n-th folder has one."""
UNAFFECTED = {
    "world": ("with a world", "other", "rlvr"),
    "policy": ("view", "plan", "serve", "rlvr"),
    "model": ("store", "resumed", "other"),
}
"""Commands that never read what is hostile in a case of this kind: left for the night."""


def commands(number, name):
    """All command lines that read this folder, with a name each.

    Paths are relative: `case-3/model` could be the name of a repository as well.
    """
    folder = Path(f"case-{number}")
    data = folder / "data"
    words = {
        "view": ["view", folder],
        "view of a store": ["view", data],
        "view with a world": ["view", data, "--world", "counter"],
        "certify": ["certify", folder],
        "certify with a world": ["certify", folder, "counter"],
        "plan": ["plan", folder],
        "plan with a world": ["plan", folder, "counter"],
        "serve": ["serve", folder, "--set", "limits.port=0"],
        "serve with a world": ["serve", folder, "--world", "counter", "--set", "limits.port=0"],
        "collect, resumed": ["collect", "counter", "--episodes", "3", "--out", data],
        "rlvr, resumed": ["rlvr", "tiny_counter", "--out", folder / "rlvr"],
        "rlvr with another spec": ["rlvr", "tiny_counter", "--out", folder / "other"],
        "train-world-model, resumed": ["train-world-model", "lake_model", "--out", folder / "wm"],
    }
    if number % PULLED == 0 or "model" in name:
        words["pull"] = ["pull", f"evil/run-{number}", f"pulled-{number}"]
        words["view of what was pulled"] = ["view", f"pulled-{number}"]
    if number % REPORTED == 0:
        words["report"] = ["report", folder, data, "--out", f"report-{number}"]
    left = UNAFFECTED.get(name.partition(":")[0], ()) if LEVEL == "commit" else ()
    return {
        command: [str(word) for word in line]
        for command, line in words.items()
        if not any(each in command for each in left)
    }


@pytest.mark.timeout(1800)
def test_no_folder_decides_what_this_machine_does(tmp_path):
    work, outside = tmp_path / "work", tmp_path / "outside"
    outside.mkdir()
    plan = []
    with fake_hub() as hub:
        for number, (name, case) in enumerate(CASES.items()):
            folder = work / f"case-{number}"
            write_case(folder, case, outside)
            hub.repos[f"evil/run-{number}"] = {"files": _files(folder), "asked": {}}
            for command, words in commands(number, name).items():
                plan.append({"case": name, "command": command, "words": words})
        (work / "evilmod.py").write_text(MODULE.format(outside=str(outside)))
        results = _run_watched(work, plan, hub)
    did = [(each["case"], each["command"], *what) for each in results for what in each["did"]]
    raised = [each for each in results if each["ended"].startswith("raised")]
    counts = Counter(kind for _, _, kind, *_ in did)
    record(
        "manifests",
        {
            "folders": len(CASES),
            "commands": len(results),
            "processes": counts["process"],
            "foreign_modules": counts["module"],
            "sockets": counts["socket"],
            "files_outside": counts["file"] + len(list(outside.iterdir())),
            "tracebacks": len(raised),
        },
    )
    assert len(CASES) >= 30 and len(results) == len(plan)
    assert not did
    assert not list(outside.iterdir())
    assert not [(each["case"], each["command"], each["said"]) for each in raised]
    _these_commands_did_something(results)


def _files(folder):
    """What a stranger's repository would hold: everything that a pull would take, and the links."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.suffix in (".json", ".parquet", ".py")
    }


def _run_watched(work, plan, hub):
    host, port = hub.server_address[:2]
    content = {"inside": [str(work)], "hub": [host, port], "commands": plan}
    (work / "plan.json").write_text(json.dumps(content))
    home = {name: str(work / "home") for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR", "HF_HOME")}
    (work / "home").mkdir()
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "TERRELLA_"))},
        **home,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_ENDPOINT": hub.address,
        "HF_TOKEN": "hf_a_secret",
        "OPENAI_API_KEY": "a_secret",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    words = [sys.executable, "-m", "tests.attack.watched", "plan.json", "report.json"]
    done = subprocess.run(
        words,
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((work / "report.json").read_text())


def _these_commands_did_something(results):
    """The commands got as far as the hostile part: honest cases work, others say what is wrong."""
    ended = {(each["case"], each["command"]): each for each in results}
    views = [each for each in results if each["command"] == "view of a store"]
    assert sum(each["ended"] == "exit 0" for each in views) > len(views) * 0.8
    shown = ended["policy: an address and the name of a key", "certify with a world"]["said"]
    assert "a chat endpoint, and a file may not start that" in shown and "--policy" in shown
    shown = ended["model: code in a model's config", "plan with a world"]["said"]
    assert "names code that would be run: auto_map" in shown
    shown = ended["world: a program as the browser", "certify"]["said"]
    assert "uses Chromium, and a file may not start that" in shown


@pytest.mark.parametrize("world", ["miniwob", "webarena"])
def test_a_prepared_folder_runs_nothing_through_view_itself(tmp_path, world):
    """The whole command, as somebody runs it on a folder that they were sent (finding 1)."""
    name = "a program as the browser" if world == "miniwob" else "a program and sites of its own"
    outside = tmp_path / "outside"
    outside.mkdir()
    write_case(tmp_path / "evilrun", CASES[f"world: {name}"], outside)
    assert SCRIPT.format(outside=outside) == (tmp_path / "evilrun/notes.txt").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "terrella", "view", "evilrun/data"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert Path(tmp_path / "evilrun/data/view/view.html").exists()
    assert not list(outside.iterdir())
