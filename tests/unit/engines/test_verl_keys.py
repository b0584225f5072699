"""Our config in verl's keys: verl has every one of them, and refuses a wrong one by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from terrella.core.config_override import override
from terrella.core.errors import ConfigError
from terrella.engines.configs import VerlConfig

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl's dependencies


def test_any_verl_key_can_be_set_and_typed_ones_stay_typed():
    config = override(
        VerlConfig(),
        ["nodes=4", "trainer.test_freq=5", "+a.b=[1,2]", "trainer.test_freq=6"],
    )
    assert config.nodes == 4 and config.keys == (
        "trainer.test_freq=5",
        "+a.b=[1,2]",
        "trainer.test_freq=6",
    )
    with pytest.raises(ConfigError, match="nodes"):
        override(VerlConfig(), ["nodes=many"])


def job(**changes: Any) -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("trl")
    import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

    from terrella.engines.configs import RlvrConfig
    from terrella.engines.verl.verl_keys import Job
    from terrella.rollout.rollout import Rollout
    from terrella.worlds.counter import Counter

    return Job(
        model=Path("/m"),
        folder=Path("/runs/x/verl"),
        rlvr=RlvrConfig(**changes),
        seed=0,
        device="cuda",
        devices=8,
        positions=40_960,
        rollout=Rollout.Config(world=Counter.Config()),
        verl=VerlConfig(),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "ppo", "critic": "shared"},
        {"steps": 3, "epochs": 2},
        {"algorithm": "ppo", "critic": "separate", "credit": "turn"},
        {"algorithm": "ppo", "critic": "separate", "lora_rank": 8},
    ],
)
def test_settings_that_verl_does_not_support_are_refused(changes: dict[str, Any]):
    from terrella.engines.verl.limits import check

    with pytest.raises(ConfigError, match=r"critic|steps"):
        check(job(**changes).rlvr)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_without_ratios_is_refused_as_on_trl(temperature: float, tmp_path: Path):
    from terrella.engines.configs import EngineConfig
    from terrella.engines.engine import make_engine

    settings = {"rlvr": job().rlvr, "temperature": temperature}
    with pytest.raises(ConfigError, match="has no log-probabilities to train on"):
        make_engine(EngineConfig(engine="verl"), work=tmp_path, **settings)


def test_the_maths_of_the_trl_engine_is_accepted():
    from terrella.engines.verl.limits import check

    check(job(refill=2, keep_share=0.25, keep_top_p=0.9, world_loss=0.5, credit="turn").rlvr)


ATTENTION = (
    "+actor_rollout_ref.model.override_config.attn_implementation",
    "+critic.model.override_config.attn_implementation",
)


@pytest.mark.parametrize(
    ("written", "wanted", "given"),
    [
        ({}, "auto", None),  # transformers chooses sdpa where a model has it
        ({"_attn_implementation": "eager"}, "auto", "eager"),
        ({"attn_implementation": "eager"}, "sdpa", "sdpa"),
    ],
)
def test_attention_is_what_the_config_promises_also_for_the_critic(
    tmp_path: Path, written: dict[str, str], wanted: str, given: str | None
):
    """Without a key verl takes flash attention."""
    from terrella.engines.verl.verl_keys import verl_keys

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **written}))
    asked = job(attention=wanted, algorithm="ppo", critic="separate")
    keys = verl_keys(replace(asked, model=tmp_path))
    assert [keys[name] for name in ATTENTION] == [given, given]


def test_flash_attention_in_fp32_is_refused():
    from terrella.engines.verl.verl_keys import verl_keys

    with pytest.raises(ConfigError, match=r"attention: .* fp32"):
        verl_keys(job(attention="flash_attention_2"))
    keys = verl_keys(job(attention="flash_attention_2", bf16=True))
    assert keys[ATTENTION[0]] == "flash_attention_2"


def test_the_critic_has_its_own_learning_rate_and_the_engine_computes_entropies():
    ppo = {"algorithm": "ppo", "critic": "separate", "learning_rate": 1e-6}
    same = composed(job(**ppo))
    apart = composed(job(**ppo, critic_learning_rate=1e-5, entropy_bonus=1e-3))
    assert same.critic.optim.lr == apart.actor_rollout_ref.actor.optim.lr == 1e-6
    assert apart.critic.optim.lr == 1e-5
    assert same.actor_rollout_ref.actor.entropy_coeff == 0.0
    assert apart.actor_rollout_ref.actor.entropy_coeff == 1e-3


def test_pack_tokens_bound_the_passes_of_the_critic():
    """verl's trainer bounds them by the second key, and its default is 32768."""
    critic = composed(job(pack_tokens=50_000, algorithm="ppo", critic="separate")).critic
    assert critic.ppo_max_token_len_per_gpu == 50_000
    assert critic.ppo_infer_max_token_len_per_gpu == 50_000


def test_new_adapters_are_those_of_the_seed():
    config = composed(replace(job(lora_rank=8), seed=7))
    assert config.actor_rollout_ref.actor.fsdp_config.seed == 7


@pytest.mark.parametrize(
    ("stored", "asked", "served"),
    [
        ({"dtype": "float32"}, "auto", "float32"),
        ({"torch_dtype": "bfloat16"}, "auto", "bfloat16"),
        ({}, "auto", "auto"),
        ({"dtype": "float32"}, "bfloat16", "bfloat16"),
    ],
)
def test_servers_load_weights_in_the_dtype_of_the_folder(
    tmp_path: Path, stored: dict[str, str], asked: str, served: str
):
    """vLLM's own `auto` would load an fp32 folder in bf16."""
    pytest.importorskip("verl", reason="verl is not installed here: .ci/verl makes the environment")
    from terrella.engines.configs import EngineConfig
    from terrella.engines.verl.verl_keys import server_keys

    described = {"model_type": "llama", "max_position_embeddings": 64, **stored}
    (tmp_path / "config.json").write_text(json.dumps(described))
    engine = override(EngineConfig(engine="verl"), ["verl.devices=1", f"vllm.dtype={asked}"])
    assert server_keys(engine, tmp_path)["actor_rollout_ref.rollout.dtype"] == served


def test_servers_on_a_cpu_read_prompts_whole_and_those_on_gpus_as_verl_chooses():
    """On a CPU a split prompt with a seed ends vLLM's engine."""
    from terrella.engines.verl.verl_keys import verl_keys

    rollout = "actor_rollout_ref.rollout"
    on_gpu = job()
    on_cpu = replace(on_gpu, device="cpu", verl=VerlConfig(prompt_tokens=30_000))
    keys = verl_keys(on_cpu)
    assert keys[f"{rollout}.enable_chunked_prefill"] is False
    assert keys[f"{rollout}.max_num_batched_tokens"] == on_cpu.longest > 30_000
    assert f"{rollout}.enable_chunked_prefill" not in verl_keys(on_gpu)


@pytest.mark.parametrize(("ours", "verls"), [(0.5, 0.5), (0.0, 1e9)])
def test_a_gradient_norm_of_0_is_no_limit(ours: float, verls: float):
    from terrella.engines.verl.verl_keys import verl_keys

    keys = verl_keys(job(max_grad_norm=ours, algorithm="ppo", critic="separate"))
    assert keys["actor_rollout_ref.actor.optim.clip_grad"] == verls
    assert keys["critic.optim.clip_grad"] == verls


def test_servers_are_not_asked_for_a_longer_context_than_the_model_has():
    from terrella.engines.verl.verl_keys import verl_keys

    small = replace(job(), positions=1024)
    keys = verl_keys(small)
    assert small.rollout.episode_tokens > 1024
    assert keys["actor_rollout_ref.rollout.max_model_len"] == 1024
    assert keys["data.max_response_length"] == 1024


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("actor_rollout_ref.actor.entropy_coeff=0.1", "set rlvr.entropy_bonus"),
        ("actor_rollout_ref.actor.clip_ratio_high=0.3", "rlvr.clip_high"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=4", "rlvr.mini_batches"),
        ("critic.ppo_epochs=2", "rlvr.epochs"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "rlvr.algorithm"),
        ("algorithm.gamma=0.9", "rlvr.gamma"),
        ("+algorithm.filter_groups.enable=true", "rlvr.refill"),
    ],
)
def test_a_key_that_would_have_no_effect_is_refused(key: str, remedy: str):
    from terrella.engines.verl.compose import refuse_own_keys

    with pytest.raises(ConfigError, match=remedy):
        refuse_own_keys(["trainer.test_freq=5", key])
    refuse_own_keys(["actor_rollout_ref.actor.optim.lr=0.5"])


@pytest.mark.parametrize(
    ("temperature", "mode"), [(1.0, "raw_logprobs"), (0.7, "processed_logprobs")]
)
def test_servers_report_probabilities_before_a_mask(temperature: float, mode: str):
    from dataclasses import replace

    verl_job = job()
    rollout = verl_job.rollout.replace(temperature=temperature)
    config = composed(replace(verl_job, rollout=rollout))
    assert config.actor_rollout_ref.rollout.logprobs_mode == mode


def composed(verl_job: Any, *extra: str) -> Any:
    pytest.importorskip("verl", reason="verl is not installed here: .ci/verl makes the environment")
    pytest.importorskip("hydra")
    from terrella.engines.verl.compose import compose
    from terrella.engines.verl.verl_keys import verl_keys

    return compose(verl_keys(verl_job), extra)


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "rloo", "ppo"])
def test_every_key_is_one_that_verl_has(algorithm: str):
    config = composed(
        job(
            algorithm=algorithm,
            critic="separate",
            kl=0.1,
            steps=80,
            groups=8,
            mini_batches=2,
            epochs=2,
            save_every=20,
        )
    )
    for part in (config.actor_rollout_ref.actor, config.critic):
        assert (part.ppo_mini_batch_size, part.ppo_epochs, part.shuffle) == (4, 2, False)
    assert config.algorithm.adv_estimator == f"terrella_{algorithm}"
    assert bool(config.critic.enable) is (algorithm == "ppo")
    assert (config.trainer.total_training_steps, config.trainer.save_freq) == (20, 5)
    assert config.actor_rollout_ref.actor.use_kl_loss
    assert config.trainer.v1.sampler.custom_sampler.name == "RefillBuffer"
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "fp32"


def test_the_users_keys_win():
    config = composed(
        job(),
        "actor_rollout_ref.actor.optim.lr=0.5",
        "+actor_rollout_ref.rollout.enable_sleep_mode=false",
    )
    assert config.actor_rollout_ref.actor.optim.lr == 0.5
    assert config.actor_rollout_ref.rollout.enable_sleep_mode is False


def test_the_dataset_and_the_buffer_that_the_keys_name_exist():
    from importlib.util import find_spec

    from terrella.engines.verl.verl_keys import verl_keys

    for schedule in ("sync", "async"):
        for key in ("data.custom_cls.path", "trainer.v1.sampler.custom_sampler.path"):
            path = verl_keys(job(schedule=schedule))[key]
            assert find_spec(path.removeprefix("pkg://")) is not None


def test_staleness_is_a_span_of_versions_on_verl():
    config = composed(job(schedule="async", staleness=3)).trainer.v1
    assert config.trainer_mode == "colocate_async"
    assert config.colocate_async.num_warmup_batches == 3
    assert config.sampler.max_off_policy_threshold == 4  # groups that are 0, 1, 2 or 3 old
    assert config.sampler.custom_sampler.name == "StaleGroupBuffer"


@pytest.mark.parametrize("wrong", ["trainer.nodes=2", "actor_rollout_ref.actor.optimiser.lr=1"])
def test_a_key_that_verl_does_not_have_is_named(wrong: str):
    with pytest.raises(
        ConfigError, match=rf"verl\.{wrong}".replace(".", r"\.").replace(r"\\.", r"\.")
    ):
        composed(job(), "trainer.test_freq=5", wrong)
