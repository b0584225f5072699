"""Recipes of text games at the paper's size start on two CPU ranks, with a small stand-in.

The stand-in has the model's architecture and R1's template. SFT fits a teacher's thoughts, RLVR
takes one optimiser step; verl's column runs where verl is installed (`.ci/verl`).
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
torch = pytest.importorskip("torch")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support import verl_cpu
from tests.support.launched import launch
from tests.support.stand_in import make_stand_in
from tests.support.teacher_server import TeacherServer, completion

from terrella.core.types import Split, show_text
from terrella.evals.text_games import situation_of
from terrella.pipelines.text_games.reasoning import reply_text
from terrella.pipelines.text_games.teacher import TeacherReply
from terrella.recipes import find_recipe
from terrella.worlds.bytesized32.sources import VARIABLE

RECIPES = ("rlvr_world_1_5b", "rlvr_world_7b")
SCRIPT = Path(__file__).parents[1] / "support" / "paper_start.py"
THOUGHT = "It does nothing."


@pytest.fixture(scope="module")
def world():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        return find_recipe("rlvr_world_1_5b")().arms["exact"].world.build()


@pytest.fixture(scope="module")
def stand_in(world, tmp_path_factory):
    """A stand-in that replies in the right form: half of the time that nothing changes."""
    pairs = []
    for record in [row for row in world.pools[Split.TRAIN] if not row.changed][:6]:
        step = world.transition(record)
        situation = situation_of(world, record)
        right = show_text(step.next_observation)
        for answer in (right, right.replace('"removed":[]', '"removed":[4]')):
            reply = TeacherReply(number=0, attempt=0, kind="right", thought=THOUGHT, answer=answer)
            pairs.append((situation, step.action, reply_text(reply, opened=True)))
    folder = tmp_path_factory.mktemp("stand-in") / "model"
    model = find_recipe("rlvr_world_1_5b")().arms["exact"].model
    make_stand_in(model, folder, pairs)
    return folder


def check(told, records):
    (step,) = told["curve"]
    assert torch.isfinite(torch.tensor([step["reward"], step["grad_norm"]])).all()
    assert step["grad_norm"] > 0, "no group had spread: nothing was trained"
    assert step.get("mismatch/max", 0.0) < 0.2
    teacher = told["result"]["teacher"]
    assert teacher["replies"] == {"right": records} and teacher["failed"] == 0
    assert teacher["usage"]["completion_tokens"] == 10 * records
    assert told["alpha"] == 16


def environment(recipe, stand_in, server, engine):
    return {
        "RECIPE": recipe,
        "STAND_IN": str(stand_in),
        "TEACHER": server.url,
        "ENGINE": engine,
        VARIABLE: "",
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_ranks_of_trl(recipe, world, stand_in, tmp_path):
    with TeacherServer(world, lambda _, answer: completion(answer, thought=THOUGHT)) as server:
        settings = environment(recipe, stand_in, server, "trl")
        first, second = launch(SCRIPT, tmp_path, recipe, 2, **settings)
    assert first == second
    check(first, records=len(server.requests))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason=".ci/verl installs verl")
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_ranks_of_verl(recipe, world, stand_in, tmp_path):
    with TeacherServer(world, lambda _, answer: completion(answer, thought=THOUGHT)) as server:
        settings = environment(recipe, stand_in, server, "verl")
        report = tmp_path / f"{recipe}.json"
        env = {**os.environ, **verl_cpu.environment(), **settings}
        command = [sys.executable, str(SCRIPT), str(report)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    check(json.loads((tmp_path / f"{recipe}.0.json").read_text()), records=len(server.requests))
