"""Settings that an engine cannot run are refused when it is made, before anything is trained."""

import importlib.util
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")
pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.cli.memory_plan import dry_run_config
from terrella.codecs.web_prompt import WebCodecConfig
from terrella.core.config_override import override
from terrella.core.errors import ConfigError, EngineError
from terrella.engines import launcher
from terrella.engines.configs import (
    EngineConfig,
    LearnerConfig,
    RlvrConfig,
    SftConfig,
    TinkerConfig,
    VerlConfig,
    VllmConfig,
)
from terrella.engines.engine import check_settings, make_engine
from terrella.engines.sampling import SamplerFactory
from terrella.engines.trl import trl_engine
from terrella.engines.trl.arguments import training_arguments
from terrella.engines.vllm import placement
from terrella.pipelines.evaluate.agents import AgentEvaluation
from terrella.pipelines.rlvr import Rlvr
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.spa.self_play import SelfPlay
from terrella.pipelines.webrl.language_agent import LanguageAgentConfig
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.recipes import all_recipes, find_recipe
from terrella.show.progress import make_progress
from terrella.worlds.counter import Counter

TINKER = EngineConfig(engine="tinker", tinker=TinkerConfig(url="http://127.0.0.1:1"))
PLAIN = RlvrConfig()


def refused(config: EngineConfig, tmp_path: Any, **settings: Any) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        make_engine(config, work=tmp_path, **settings)
    return error.value


@pytest.mark.parametrize("engine", ["trl", "verl", "tinker"])
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rlvr": RlvrConfig(save_every=3, epochs=2)}, "save_every"),
        ({"rlvr": RlvrConfig(save_every=3, mini_batches=2)}, "save_every"),
        ({"rlvr": RlvrConfig(groups=6, mini_batches=4)}, "mini_batches"),
        ({"rlvr": RlvrConfig(schedule="async", staleness=0)}, "staleness"),
        ({"rlvr": PLAIN, "temperature": 0.0}, "temperature"),
        ({"rlvr": RlvrConfig(algorithm="rloo"), "history": "actions"}, "algorithm"),
    ],
)
def test_every_engine_refuses_rl_that_cannot_be_run(engine, settings, named, tmp_path):
    config = TINKER.replace(engine=engine)
    assert refused(config, tmp_path, **settings).where == named
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rlvr": RlvrConfig(algorithm="ppo")}, "rlvr.critic"),
        ({"rlvr": RlvrConfig(steps=3, epochs=2)}, "rlvr.steps"),
        ({"rlvr": RlvrConfig(top_layers=2)}, "rlvr.top_layers"),
        ({"rlvr": PLAIN, "history": "actions"}, "history"),
    ],
)
def test_verl_refuses_whether_it_is_installed_or_not(settings, named, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = EngineConfig(engine="verl")
    assert refused(config, tmp_path, **settings).where == named
    with pytest.raises(EngineError, match="not installed"):
        make_engine(config, work=tmp_path, rlvr=PLAIN)


def test_verl_refuses_mini_batches_that_its_devices_cannot_share(tmp_path):
    """verl itself stops in its first update, with an assertion."""

    def on(*keys: str, nodes: int = 3) -> EngineConfig:
        return EngineConfig(engine="verl", verl=VerlConfig(nodes=nodes, devices=8, keys=keys))

    for config, rlvr in (
        (on(), RlvrConfig(groups=16)),  # 128 episodes, 24 devices
        (on(nodes=2), RlvrConfig(groups=16, mini_batches=16, steps=96)),  # 8 episodes, 16 devices
    ):
        assert refused(config, tmp_path, rlvr=rlvr).where == "rlvr.groups"
    for config, rlvr in (
        (on(), RlvrConfig(groups=24, mini_batches=8, steps=96)),
        (on("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=3"), PLAIN),
        (EngineConfig(engine="verl"), RlvrConfig(groups=7)),  # its devices are not known yet
    ):
        check_settings(config, rlvr=rlvr)


def test_trl_knows_its_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert refused(EngineConfig(), tmp_path, rlvr=PLAIN).where == "groups"
    make_engine(EngineConfig(), work=tmp_path, rlvr=RlvrConfig(steps=0))  # no RL


@pytest.mark.parametrize("rlvr", [{"algorithm": "ppo"}, {"world_loss": 0.1}])
def test_trl_plays_each_task_twice_also_where_nothing_is_compared(rlvr, tmp_path):
    """TRL's own config refuses one, but only after the warm-up."""
    once = RlvrConfig(group_size=1, critic="separate", **rlvr)
    with pytest.raises(ValueError, match="at least 2 generations"):
        training_arguments(once, tmp_path, seed=0)
    assert refused(EngineConfig(), tmp_path, rlvr=once).where == "rlvr.group_size"
    check_settings(EngineConfig(), rlvr=once.replace(group_size=2))
    check_settings(EngineConfig(engine="verl"), rlvr=once)


def test_a_server_beside_the_trainer_serves_one_machine(tmp_path, monkeypatch):
    """Before SFT and the first evaluation: every rank would fail when RL begins."""
    served = EngineConfig(sampler="vllm")
    check_settings(served, rlvr=PLAIN, ranks=16)
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    error = refused(served, tmp_path, rlvr=PLAIN)
    assert error.where == "sampler" and "not 2" in error.what
    folder = tmp_path / "model"
    monkeypatch.setattr(SamplerFactory, "uses_server", lambda self, model: model == folder)
    monkeypatch.setattr(trl_engine, "require_vllm", lambda: None)
    with pytest.raises(ConfigError, match="it serves one machine"):
        make_engine(EngineConfig(), work=tmp_path, rlvr=PLAIN, model=folder)  # a large one
    for fine in (RlvrConfig(steps=0), None):
        make_engine(served, work=tmp_path, rlvr=fine)
    make_engine(EngineConfig(), work=tmp_path, rlvr=PLAIN)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigError, match="it serves one machine"):
        check_settings(served, rlvr=PLAIN, ranks=16, machines=2)
    check_settings(served.replace(engine="verl"), rlvr=PLAIN, ranks=16, machines=2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rlvr": RlvrConfig(attention="flash_attention_2")}, "rlvr.attention"),
        ({"rlvr": RlvrConfig(report_to=("no-such",))}, "report_to"),
        ({"rlvr": RlvrConfig(epochs=2, save_every=3)}, "save_every"),
        (
            {"warmup": SftConfig(top_layers=2), "warmup_examples": 8, "engine": "verl"},
            "warmup.top_layers",
        ),
        ({"record_every": 5, "engine": "verl"}, "record_every"),
    ],
)
def test_a_pipeline_refuses_before_it_warms_up(changes, named, tmp_path):
    config = Rlvr.Config(world=Counter.Config(), model="tiny-0.3m", out=tmp_path / "run", **changes)
    with make_progress() as progress, pytest.raises(ConfigError) as error:
        config.build().run(progress)
    assert error.value.where == named
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError) as dry:
        dry_run_config(config)
    assert dry.value.where == named


@pytest.mark.parametrize(
    ("engine", "settings", "named"),
    [
        ("verl", (), "agent.training.top_layers"),
        ("verl", ("top_layers=0",), "agent.critic.value_heads"),
        ("verl", ("top_layers=0", "value_heads=1", "lora_rank=8"), "agent.critic.lora_rank"),
        ("verl", ("top_layers=0", "value_heads=1"), ""),
        ("trl", ("attention=flash_attention_2",), "agent.training.attention"),
        ("trl", (), ""),
        ("tinker", (), "agent.training"),
    ],
)
def test_the_settings_of_learners_are_checked(engine, settings, named):
    """WebRL trains its language models with learners: an actor, a critic and, if asked, a judge."""
    assignments = [
        f"agent.{part}.{each}"
        for part in ("training", "critic")
        for each in settings
        if part == "critic" or not each.startswith("value_heads")
    ]
    config = override(find_recipe("webrl_smollm2_arena_run")(), assignments)
    config = config.replace(engine=engine, tinker=TINKER.tinker)
    if not named:
        config.build().check_settings()
        return
    with pytest.raises(ConfigError) as error:
        config.build().check_settings()
    assert error.value.where == named


FLASH = LearnerConfig(attention="flash_attention_2", top_layers=2)


@pytest.mark.parametrize("engine", ["trl", "verl", "tinker"])
@pytest.mark.parametrize(
    "config",
    [
        WebRl.Config(
            families={"count": Counter.Config()},
            agent=LanguageAgentConfig(training=FLASH, critic=FLASH, judge=FLASH),
        ),
        AgentEvaluation.Config(model="smollm2", worlds={"count": Counter.Config()}, scorer=FLASH),
        Rlvr.Config(world=Counter.Config(), warmup=SftConfig(attention="flash_attention_2")),
        Spa.Config(
            world=Counter.Config(),
            form="worldmodel",
            self_play=SelfPlay.Config(trajectories=0, sft=SftConfig(top_layers=2, bf16=True)),
            rlvr=RlvrConfig(steps=0, lora_rank=3, top_layers=2),
        ),
    ],
    ids=["a pointer network", "a model that writes", "no warm-up", "no self-play, no RL"],
)
def test_settings_of_what_is_left_out_are_not_checked(config, engine):
    config.replace(engine=engine, tinker=TINKER.tinker).build().check_settings()


def test_a_model_that_scores_uses_its_learner():
    config = AgentEvaluation.Config(
        model="smollm2",
        worlds={"count": Counter.Config()},
        act="score",
        codec=WebCodecConfig(),
        scorer=FLASH,
    )
    with pytest.raises(ConfigError) as error:
        config.build().check_settings()
    assert error.value.where == "scorer.attention"


@pytest.mark.parametrize(
    ("changes", "instead"),
    [
        ({"memory": 0.3}, "verl.server_memory"),
        ({"tensor_parallel": 2}, "verl.tensor_parallel"),
        ({"devices": (1,)}, "verl.devices"),
        ({"sleep": True}, "free_cache_engine"),
        ({"max_num_seqs": 8}, "rollout.max_num_seqs"),
        ({"arguments": ("--enforce-eager",)}, "engine_kwargs"),
        ({"data_parallel": 2}, "vllm.data_parallel=1"),
        ({"request_seconds": 60.0}, "vllm.request_seconds=3600"),
    ],
)
def test_settings_of_a_server_that_verl_does_not_start_name_its_own(changes, instead, tmp_path):
    config = EngineConfig(engine="verl", vllm=VllmConfig(**changes))
    error = refused(config, tmp_path)
    assert error.where == f"vllm.{next(iter(changes))}" and instead in error.remedy


def test_verl_runs_the_recipes_that_name_a_server_for_trl(tmp_path):
    """Their servers are then verl's, and `vllm.memory` and `vllm.sleep` are for TRL."""
    found = 0
    for recipe in all_recipes().values():
        whole = recipe()
        for config in getattr(whole, "arms", {"": whole}).values():
            if getattr(config, "sampler", "") != "vllm":
                continue
            found += 1
            own = EngineConfig(engine="verl", sampler="vllm", vllm=config.vllm, verl=config.verl)
            check_settings(own)
            split = own.replace(vllm=own.vllm.replace(tensor_parallel=2))
            assert refused(split, tmp_path).where == "vllm.tensor_parallel"
    assert found > 3


@pytest.mark.parametrize("seen", ["", "0,1,2,3,4,5,6,7"])
def test_a_server_on_gpus_on_which_ranks_train_is_refused(seen, monkeypatch, tmp_path):
    if seen:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    else:  # as on a laptop that plans for a node
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(placement, "visible_gpus", tuple)
    config = EngineConfig(sampler="vllm", vllm=VllmConfig(devices=(6, 7), data_parallel=2))
    rlvr = RlvrConfig(groups=24)
    with pytest.raises(ConfigError, match="GPU 6, 7: a rank trains there") as error:
        check_settings(config, rlvr=rlvr, ranks=8)
    assert error.value.where == "vllm.devices"
    check_settings(config, rlvr=rlvr, ranks=6)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ConfigError, match="GPU 6, 7"):  # learners, which settings do not name
        make_engine(config, work=tmp_path, learners=LearnerConfig())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.setattr(placement, "visible_gpus", launcher.visible_gpus)
    monkeypatch.setenv("WORLD_SIZE", "1")
    check_settings(config, rlvr=rlvr)
    make_engine(config.replace(vllm=VllmConfig(devices=(2,))), work=tmp_path)  # nothing is trained


def test_a_server_that_would_sleep_while_it_samples_is_refused(monkeypatch, tmp_path):
    asleep = EngineConfig(sampler="vllm", vllm=VllmConfig(sleep=True))
    with pytest.raises(ConfigError, match="never sleeps") as error:
        check_settings(asleep, rlvr=RlvrConfig(schedule="async"))
    assert error.value.where == "vllm.sleep"
    check_settings(asleep, rlvr=RlvrConfig())
    check_settings(asleep, rlvr=RlvrConfig(schedule="async", steps=0))
    check_settings(asleep.replace(sampler="local"), rlvr=RlvrConfig(schedule="async"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampler": "vllm"}, "sampler"),
        ({"sampler": "local"}, "sampler"),
        ({"vllm": VllmConfig(max_model_len=512, memory=0.3)}, "vllm.memory"),
    ],
)
def test_an_endpoint_needs_no_sampler_of_ours(changes, named, tmp_path):
    error = refused(TINKER.replace(**changes), tmp_path)
    assert error.where == named
    if "vllm" in changes:
        assert "--set vllm.max_model_len=4096" in error.remedy
