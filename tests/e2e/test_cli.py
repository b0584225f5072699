"""The real command, as a person runs it."""

import json
import os
import subprocess
import sys


def terrella(*words, cwd, code=0):
    command = [sys.executable, "-m", "terrella.cli", *words]
    wide = {**os.environ, "COLUMNS": "250"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=wide)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_new_world_passes_its_check_and_a_spoiled_one_does_not(tmp_path):
    assert "now: terrella check thermostat" in terrella(
        "new-world", "thermostat", cwd=tmp_path
    ).replace("\n", " ")
    source = tmp_path / "thermostat/__init__.py"
    assert len([line for line in source.read_text().splitlines() if line.strip()]) <= 40
    assert "0 broken properties" in terrella("check", "thermostat", cwd=tmp_path)
    source.write_text(source.read_text().replace("rng.integers(5, 60)", "np.random.randint(5, 60)"))
    assert "BROKEN" in terrella("check", "thermostat", cwd=tmp_path, code=1)


def test_a_name_that_is_taken_is_refused(tmp_path):
    assert "ships with terrella" in terrella("new-world", "counter", cwd=tmp_path, code=2)
    terrella("new-world", "mine", cwd=tmp_path)
    assert "exists already" in terrella("new-world", "mine", cwd=tmp_path, code=2)


def test_errors_are_for_people(tmp_path):
    shown = terrella(
        "collect",
        "frozen_lake",
        "--transitions",
        "10",
        "--set",
        "world.sizze=3",
        cwd=tmp_path,
        code=2,
    )
    assert "unknown key 'sizze'" in shown and "size" in shown and "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []  # it failed before anything was written


def test_a_dry_run_prints_the_resolved_config_and_writes_nothing(tmp_path):
    shown = terrella(
        "collect",
        "frozen_lake:6x6",
        "--transitions",
        "10",
        "--set",
        "policy.share=0.5",
        "--policy",
        "mixture",
        "--dry-run",
        cwd=tmp_path,
    )
    config = json.loads(shown)
    assert config["world"]["size"] == 6 and config["policy"]["share"] == 0.5
    assert list(tmp_path.iterdir()) == []


def test_collect_then_read_back(tmp_path):
    terrella(
        "collect",
        "counter",
        "--policy",
        "expert",
        "--episodes",
        "20",
        "--out",
        "store",
        cwd=tmp_path,
    )
    from terrella.data.store import EpisodeStore

    episodes = list(EpisodeStore.open(tmp_path / "store").episodes())
    assert len(episodes) == 20 and all(episode.success for episode in episodes)


def test_doctor_names_what_is_missing(tmp_path):
    shown = terrella("doctor", cwd=tmp_path)
    assert "cores" in shown and "-> pip install 'terrella[" in shown.replace("\n", " ")


def test_worlds_lists_every_folder(tmp_path):
    from terrella.worlds import builtin_names

    shown = terrella("worlds", cwd=tmp_path)
    assert all(name in shown for name in builtin_names())
