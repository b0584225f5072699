"""Adapters are scaled as a recipe says, on every engine."""

from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.core.errors import ConfigError
from terrella.engines.configs import SftConfig, TinkerConfig
from terrella.engines.tinker.limits import check_part
from terrella.engines.trl.arguments import lora
from terrella.engines.verl.verl_keys import model_keys
from terrella.recipes import find_recipe

ALPHA = "actor_rollout_ref.model.lora_alpha"


def test_alpha_is_twice_the_rank_unless_given():
    assert lora(0) is None
    assert (lora(32).lora_alpha, lora(32, 16).lora_alpha) == (64, 16)
    assert model_keys(SftConfig(lora_rank=32), Path("x"))[ALPHA] == 64
    assert model_keys(SftConfig(lora_rank=32, lora_alpha=16), Path("x"))[ALPHA] == 16


def test_an_endpoint_that_scales_adapters_itself_refuses_another_alpha():
    with pytest.raises(ConfigError, match="lora_alpha"):
        check_part(SftConfig(lora_alpha=16), TinkerConfig(), where="sft")


@pytest.mark.parametrize("name", ["rlvr_world_1_5b", "rlvr_world_7b"])
def test_the_papers_recipes_have_the_published_settings(name):
    arm = find_recipe(name)().arms["exact"]
    assert (arm.sft.lora_rank, arm.sft.lora_alpha, arm.sft.learning_rate) == (32, 16, 1e-5)
    assert (arm.sft.batch_size, arm.sft.epochs) == (16, 15)
    assert (arm.rlvr.groups, arm.rlvr.group_size, arm.rlvr.mini_batches) == (128, 5, 2)
    assert (arm.rlvr.learning_rate, arm.rlvr.kl, arm.rlvr.lora_rank) == (1e-6, 0.001, 0)
    assert (arm.verl.prompt_tokens, arm.turn_tokens) == (7192, 4096)
    assert arm.world.prompt == "published" and arm.world.examples == 2
    assert arm.teacher.longest == 4000
