"""Recipes and settings are resolved before anything heavy is imported."""

import json
import math
import os
import subprocess
import sys

import pytest

from terrella.recipes import all_recipes

CPU_SECONDS = 2.0
TRIES = 8
"""The same command costs 1.3 to 2.5 s on a virtual machine whose host is busy."""
BLOCKED = ("torch", "transformers", "trl", "accelerate", "ray", "vllm", "verl")

# Runs the real command line, then reports its CPU time and which heavy modules it imported.
PROBE = f"""
import atexit, sys, time
def report():
    heavy = sorted(set({BLOCKED!r}) & set(sys.modules))
    print("PROBE", round(time.process_time(), 2), ",".join(heavy) or "none", file=sys.stderr)
atexit.register(report)
sys.argv = ["terrella", *sys.argv[1:]]
from terrella.cli import main
main()
"""


def terrella(*arguments, code=0, columns=250, cwd=None):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": str(columns)},
        cwd=cwd,
    )
    assert done.returncode == code, done.stdout + done.stderr
    *shown, probe = done.stderr.splitlines()
    _, seconds, heavy = probe.split()
    return done.stdout + "\n".join(shown), float(seconds), heavy


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("rlvr", "tiny_counter", "--dry-run"), 0),
        (("train-world-model", "video_table", "--dry-run"), 0),
        (("reproduce", "webrl_miniwob", "--dry-run"), 0),
        (("rlvr", "webrl_llama_8b_webarena_lite", "--dry-run"), 0),
        (("rlvr", "webrl_sokoban_run", "--dry-run"), 0),
        (("reproduce", "bytesized32_tiny", "--dry-run"), 0),
        (("evaluate", "tiny-1m", "sokoban", "frozen_lake:4x4_slip", "--dry-run"), 0),
        (("evaluate", "smolm2", "sokoban"), 2),
        (("sft", "{chats}", "--dry-run"), 0),
        (("import", "cot", "{chats}", "--out", "x", "--dry-run"), 0),
        (("export", "nowhere", "--out", "x"), 2),
        (("rlvr", "tiny_conter"), 2),
        (("rlvr", "tiny_counter", "--set", "rlvr.algorthm=ppo"), 2),
        (("rlvr", "tiny_counter", "--set", "model=smolm2"), 2),
    ],
)
def test_a_dry_run_and_a_typo_cost_little_and_import_no_torch(arguments, code, tmp_path):
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"prompt": "a", "completion": "b"}')
    arguments = [argument.format(chats=chats) for argument in arguments]
    runs = (terrella(*arguments, code=code) for _ in range(TRIES))
    cheapest = math.inf
    for _, seconds, heavy in runs:  # a busy machine makes CPU seconds longer, never shorter
        assert heavy == "none"
        cheapest = min(cheapest, seconds)
        if cheapest <= CPU_SECONDS:
            return
    pytest.fail(f"{cheapest} s of CPU in the best of {TRIES} runs")


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (("rlvr", "tiny_conter"), "did you mean tiny_counter"),
        (("rlvr", "tiny_counter", "--set", "rlvr.algorthm=ppo"), "did you mean algorithm?"),
        (("rlvr", "tiny_counter", "--set", "model=smolm2"), "did you mean smollm2"),
        (("evaluate", "smolm2", "sokoban"), "did you mean smollm2"),
        (("evaluate", "tiny-1m", "sokoban", "--set", "sampels=1"), "did you mean samples"),
        (("import", "lerobt", ".", "--out", "x"), "did you mean lerobot"),
        (("reproduce", "spa_sokoban", "--set", "arms.spaa.seed=1"), "did you mean spa"),
        (("reproduce", "spa_sokoban", "--set", "max_env_step=1"), "did you mean max_env_steps"),
    ],
)
def test_a_mistyped_name_gets_a_suggestion(arguments, suggestion):
    shown, _, _ = terrella(*arguments, code=2)
    assert suggestion in shown and "Traceback" not in shown


def test_a_recipe_for_another_command_is_refused_by_name():
    shown, _, _ = terrella("rlvr", "spa_sokoban", code=2)
    assert "is not a recipe for `terrella rlvr`" in shown
    assert "use `terrella reproduce spa_sokoban`" in shown


@pytest.mark.parametrize(
    ("body", "name", "told"),
    [
        ("def run(): return 3", "mine.run", "returned int, not a config"),
        (
            "def run(): return 3",
            "mine.runn",
            "mine has no function runn -> did you mean run",
        ),
    ],
)
def test_a_recipe_of_ones_own_that_is_none_is_refused_by_what_it_is(tmp_path, body, name, told):
    (tmp_path / "mine.py").write_text(body)
    shown, _, _ = terrella("rlvr", name, code=2, cwd=tmp_path)
    assert told in " ".join(shown.split()) and "Traceback" not in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("rlvr", "gated_lake_agent", "--set", "world.gate.audit_share=-1", "--dry-run"),
        ("launch", "tiny_counter", "--devices", "0", "--dry-run"),
        ("launch", "tiny_counter", "--nodes", "-1", "--dry-run"),
        ("rlvr", "tiny_counter", "--set", "model=runs/nosuch", "--dry-run"),
        ("rlvr", "tiny_counter", "--set", "model=ftp://host/model", "--dry-run"),
        ("evaluate", "runs/nosuch", "frozen_lake", "--dry-run"),
        ("evaluate", "tiny-0.3m", "frozen_lake", "--temperature", "-1", "--dry-run"),
        ("evaluate", "tiny-0.3m", "frozen_lake", "--concurrency", "0", "--dry-run"),
        ("evaluate", "tiny-0.3m", "frozen_lake", "--horizon", "9", "--dry-run"),
        ("evaluate", "tiny-0.3m", "frozen_lake", "--price-in", "3", "--dry-run"),
        ("evaluate", "tiny-0.3m", "counter", "--as", "world-model", "--samples", "3", "--dry-run"),
    ],
)
def test_numbers_and_names_that_mean_nothing_are_refused_before_the_run(arguments):
    shown, _, _ = terrella(*arguments, code=2)
    assert "Traceback" not in shown and "->" in shown


def test_worlds_and_models_go_into_any_recipe_by_name():
    shown, _, _ = terrella(
        "rlvr",
        "tiny_counter",
        "--dry-run",
        "--set",
        "world=sokoban:two_box",
        "--set",
        "world.max_steps=7",
        "--set",
        "model=smollm2",
        "--set",
        "turn_tokens=16",
    )
    config = json.loads(shown)
    assert config["world"]["class"].endswith("Sokoban") and config["world"]["max_steps"] == 7
    assert config["world"]["boxes"] == 2 and config["model"] == "smollm2"


def test_set_reaches_every_arm_of_a_reproduction_or_one():
    shown, _, _ = terrella(
        "reproduce",
        "spa_sokoban",
        "--dry-run",
        "--set",
        "rlvr.steps=7",
        "--set",
        "arms.vanilla.seed=3",
    )
    arms = json.loads(shown)["arms"]
    assert {arm["rlvr"]["steps"] for arm in arms.values()} == {7}
    assert arms["vanilla"]["seed"] == 3 and arms["spa"]["seed"] == 0


def test_recipes_are_listed_by_command_with_what_to_expect():
    shown, _, heavy = terrella("recipes")
    assert heavy == "none"
    for title in ("terrella rlvr", "terrella train-world-model", "terrella reproduce"):
        assert title in shown
    assert "tiny_lake_model" in shown and "spa_sokoban" in shown


def test_names_of_recipes_are_whole_in_a_narrow_terminal():
    shown, _, _ = terrella("recipes", columns=80)
    assert [name for name in all_recipes() if f" {name} " not in shown] == []
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_filter_that_no_recipe_matches_is_an_error():
    shown, _, heavy = terrella("recipes", "tiny_conter", code=2)
    assert "tiny_conter: no recipe's name contains this" in shown and heavy == "none"
    assert "did you mean tiny_counter" in shown


def test_the_version_is_shown():
    shown, _, heavy = terrella("--version")
    assert shown.startswith("terrella ") and heavy == "none"


def test_a_quick_reproduction_goes_to_the_folder_that_was_asked_for(tmp_path):
    asked = str(tmp_path / "here")
    shown, _, _ = terrella("reproduce", "spa_sokoban", "--quick", "--out", asked, "--dry-run")
    config, _ = json.JSONDecoder().raw_decode(shown)  # a notice on the seeds comes after it
    assert config["out"] == asked
