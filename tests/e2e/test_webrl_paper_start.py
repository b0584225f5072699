"""WebRL's recipes of paper size start on two CPU ranks: every part of two phases, a small model.

The stand-in has the model's architecture and the structure of its chat template. It is sharded by
FSDP2, as the memory plan says. The plan also says whether the real one fits.
"""

import math
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.attack.campaign import LEVEL
from tests.support.button_world import ButtonWorld
from tests.support.fsdp_on_cpu import FSDP2
from tests.support.launched import launch
from tests.support.web_stand_in import make_web_stand_in

from terrella.cli.memory_plan import show_plan
from terrella.recipes import find_recipe

RECIPES = ("webrl_llama_8b_webarena_lite", "webrl_glm4_9b_webarena_lite")
AS_LAUNCHED = {**FSDP2, "FSDP_CPU_RAM_EFFICIENT_LOADING": "false"}
del AS_LAUNCHED["FSDP_TRANSFORMER_CLS_TO_WRAP"]
"""As in launch/accelerate/fsdp2.yaml: the model says which layers are wrapped."""
SCRIPT = Path(__file__).parents[1] / "support" / "webrl_paper_start.py"


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_fits_its_hardware_and_its_server_takes_its_prompts(recipe):
    config = find_recipe(recipe)()
    longest = config.agent.codec.prompt_tokens + config.agent.turn_tokens
    assert longest <= config.vllm.max_model_len
    assert show_plan(config, "8xH100") == "fsdp2"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "recipe",
    [
        RECIPES[0],
        pytest.param(
            RECIPES[1], marks=pytest.mark.skipif(LEVEL == "commit", reason="as the first: nightly")
        ),
    ],
)
def test_two_ranks(recipe, tmp_path):
    world = ButtonWorld.Config().build()
    texts = [world.reset(seed=seed)[0].text for seed in range(4)] + [
        'do(action="Click", element="2")',
        'do(action="Click", element="3")',
    ]
    make_web_stand_in(find_recipe(recipe)().model, tmp_path / "model", texts * 4)
    first, second = launch(
        SCRIPT,
        tmp_path,
        recipe,
        2,
        RECIPE=recipe,
        STAND_IN=str(tmp_path / "model"),
        **AS_LAUNCHED,
    )
    assert first == second and first["sharded"]
    assert first["base"]["demonstrations"] == 4 and math.isfinite(first["base"]["loss"])
    for phase in first["phases"]:
        assert math.isfinite(phase["actor"]["loss"]) and math.isfinite(phase["critic"]["last_loss"])
        assert phase["practice"]["env_steps"] >= 4 and phase["outcome_errors"]["n"] > 0
    assert first["outcome_model"]["n"] == 2 and first["test"]["n"] == 2
