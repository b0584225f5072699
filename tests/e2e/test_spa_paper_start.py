"""Recipes of SPA at the paper's size start on two CPU ranks, with a small stand-in.

The stand-in has the model's architecture and a template like its own. It plays, SFT fits its
replies with the true states in them, PPO takes one optimiser step. One recipe is in the gate; the
others are `.ci/nightly`'s, and verl's column runs where verl is installed (`.ci/verl all`).
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
from tests.support.stand_in import make_spa_stand_in

from terrella.recipes import find_recipe

NIGHTLY = (
    pytest.mark.nightly,
    pytest.mark.skipif(not os.environ.get("TERRELLA_NIGHTLY"), reason="as the first: nightly"),
)
RECIPES = (
    "spa_qwen_1_5b_sokoban",
    *(
        pytest.param(name, marks=NIGHTLY)
        for name in (
            "spa_qwen_0_5b_sudoku",
            "spa_qwen_3b_frozen_lake",
            "spa_llama_1b_frozen_lake",
        )
    ),
)
"""Each model once, and each world."""
SCRIPT = Path(__file__).parents[1] / "support" / "spa_start.py"


def prepared(recipe, folder, engine):
    make_spa_stand_in(find_recipe(recipe)().arms["spa"], folder / "model")
    return {"RECIPE": recipe, "STAND_IN": str(folder / "model"), "ENGINE": engine}


def check(told):
    (step,) = told["curve"]
    assert torch.isfinite(torch.tensor([step["reward"], step["grad_norm"], step["entropy"]])).all()
    assert step["grad_norm"] > 0, "no group had spread: nothing was trained"
    assert step.get("mismatch/max", 0.0) < 0.2
    result = told["result"]
    assert result["self_play"]["examples"] > 0 and result["rl"]["iterations"] == 1
    assert result["base"]["well_formed"] > 0.0, "the stand-in does not know the form"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_ranks_of_trl(recipe, tmp_path):
    settings = prepared(recipe, tmp_path, "trl")
    first, second = launch(SCRIPT, tmp_path, recipe, 2, **settings)
    assert first == second
    check(first)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason=".ci/verl installs verl")
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_ranks_of_verl(recipe, tmp_path):
    settings = prepared(recipe, tmp_path, "verl")
    env = {**os.environ, **verl_cpu.environment(), **settings}
    command = [sys.executable, str(SCRIPT), str(tmp_path / f"{recipe}.json")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    check(json.loads((tmp_path / f"{recipe}.0.json").read_text()))
