"""Numbers of training configs that cannot be meant are refused by name, when they are set."""

import math

import pytest

from terrella.core.config import dump
from terrella.core.config_override import override
from terrella.core.errors import ConfigError
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.pipelines.rlvr import Rlvr
from terrella.recipes import find_recipe
from terrella.worlds.counter import Counter

RLVR = Rlvr.Config(world=Counter.Config())


@pytest.mark.parametrize(
    "assignment",
    [
        "rlvr.steps=-5",
        "rlvr.groups=0",
        "rlvr.group_size=0",
        "rlvr.learning_rate=nan",
        "rlvr.learning_rate=0",
        "rlvr.learning_rate=-1e-4",
        "rlvr.warmup_steps=-1",
        "rlvr.mini_batches=0",
        "rlvr.epochs=0",
        "rlvr.keep_share=0",
        "rlvr.gamma=1.5",
        "warmup.epochs=0",
        "warmup.batch_size=0",
        "warmup.learning_rate=inf",
        "warmup.pack_tokens=0",
        "turn_tokens=0",
        "max_turns=0",
        "warmup_examples=-1",
        "correct_fraction=5",
        "seed=-1",
        "env_pool.workers=0",
        "vllm.memory=2",
        "vllm.max_model_len=0",
        "verl.nodes=0",
        "verl.devices=-1",
        "verl.server_memory=2",
        "verl.restarts=-1",
        "tinker.lora_rank=-1",
        "tinker.pad_tokens=-1",
        "tinker.beta2=1.5",
        "rlvr.lora_alpha=-1",
        "rlvr.refill=-1",
        "rlvr.entropy_bonus=-0.1",
    ],
)
def test_the_key_is_named_as_it_was_set(assignment):
    with pytest.raises(ConfigError) as error:
        override(RLVR, [assignment])
    assert error.value.where == assignment.partition("=")[0]
    assert error.value.remedy


def test_no_rl_and_settings_that_are_left_open_are_allowed():
    RlvrConfig(steps=0, clip_high=None, refill=None)
    override(RLVR, ["rlvr.steps=0", "rlvr.kl=0", "rlvr.max_grad_norm=0"])


def test_one_episode_is_no_group_but_a_critic_needs_none():
    with pytest.raises(ConfigError, match="only one"):
        RlvrConfig(group_size=1).check(processes=1)
    RlvrConfig(group_size=1, algorithm="ppo").check(processes=1)
    override(RLVR, ["rlvr.group_size=1", "rlvr.algorithm=ppo"])  # in any order


def test_a_number_that_json_has_not_is_named_when_it_is_written():
    with pytest.raises(ConfigError, match="correct_fraction"):
        dump(RLVR.replace(correct_fraction=math.nan))
    with pytest.raises(ConfigError, match="learning_rate"):
        SftConfig(learning_rate=math.nan)


@pytest.mark.parametrize(
    ("recipe", "assignment"),
    [
        ("webrl_sokoban_run", "learner.learning_rate=-1"),
        ("webrl_sokoban_run", "phases=-1"),
        ("webrl_sokoban_run", "practice.low=3"),
        ("webrl_sokoban_run", "practice.low=0.8"),
        ("video_quick", "videos.trainer.learning_rate=-1"),
        ("video_quick", "width=-1"),
        ("lake_model", "evaluate_on=-1"),
        ("gated_lake_agent", "world.samples=0"),
        ("gated_lake_agent", "world.gate.audit_share=-1"),  # which would switch the audits off
    ],
)
def test_so_are_those_of_every_pipeline(recipe, assignment):
    with pytest.raises(ConfigError):
        override(find_recipe(recipe)(), [assignment])
