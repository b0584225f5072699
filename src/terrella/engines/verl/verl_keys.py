"""Translates our typed config into verl's keys. Keys not named here keep verl's defaults.

config = compose(verl_keys(job), verl.keys)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError, EngineError
from terrella.core.files import read_json
from terrella.core.tokens import Head
from terrella.engines.configs import (
    EngineConfig,
    LearnerConfig,
    MemoryConfig,
    RlvrConfig,
    SftConfig,
    VerlConfig,
)
from terrella.engines.training_parts import warmup_within
from terrella.engines.verl.compose import ACTOR
from terrella.models.foreign_code import refuse_code
from terrella.rollout.rollout import Rollout

PACKAGE = "terrella.engines.verl"
PASS_TOKENS = 8192
"""verl's default of `max_num_batched_tokens`."""
NO_LIMIT = 1e9
"""A gradient's norm that none has."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings that verl's keys are made from."""

    model: Path
    """A plain Hugging Face folder."""
    folder: Path
    """For checkpoints, spec file and metrics; on storage that all nodes share."""
    rlvr: Any
    """`RlvrConfig`."""
    seed: int
    """The pipeline's seed."""
    rollout: Rollout.Config
    verl: VerlConfig
    device: str
    devices: int
    """Devices per node."""
    positions: int
    """The longest sequence that the model can read; servers refuse a longer context."""

    @property
    def spec_file(self) -> Path:
        """The `RolloutSpec` of the run."""
        return self.folder / "rollout_spec.json"

    @property
    def loop_config(self) -> Path:
        """The config file of agent loops that verl reads."""
        return self.folder / "agent_loops.yaml"

    @property
    def longest(self) -> int:
        """The length of the longest sequence, in tokens."""
        return min(self.verl.prompt_tokens + self.rollout.episode_tokens, self.positions)


def verl_keys(job: Job) -> dict[str, Any]:
    """Every key that differs from verl's default. Keys that the user sets override them."""
    return {
        **_data(job),
        **model_keys(job.rlvr, job.model),
        **_actor(job),
        **_critic(job),
        **_rollout(job),
        **_run(job),
    }


def _data(job: Job) -> dict[str, Any]:
    return {
        "data.train_files": str(job.spec_file),
        "data.val_files": str(job.spec_file),
        "data.shuffle": False,
        "data.custom_cls.path": f"pkg://{PACKAGE}.task_dataset",
        "data.custom_cls.name": "TaskDataset",
        "data.train_batch_size": job.rlvr.groups,
        "data.dataloader_num_workers": 0,
        "data.max_prompt_length": job.verl.prompt_tokens,
        "data.max_response_length": min(job.rollout.episode_tokens, job.positions),
    }


def _weights(role: str, model: Path) -> dict[str, Any]:
    """Where the weights are; code of the model's own is refused before verl sees it."""
    if model.is_dir():
        refuse_code(model)
    return {f"{role}.path": str(model), f"{role}.trust_remote_code": False}


def model_keys(settings: MemoryConfig, model: Path) -> dict[str, Any]:
    """The model, with adapters if there are any."""
    if settings.top_layers:
        raise ConfigError("top_layers", "verl trains all layers", "set 0, or use engine=trl")
    return {
        **_weights("actor_rollout_ref.model", model),
        "actor_rollout_ref.model.lora_rank": settings.lora_rank,
        "actor_rollout_ref.model.lora_alpha": settings.lora_alpha or 2 * settings.lora_rank or 16,
        "actor_rollout_ref.model.enable_gradient_checkpointing": settings.gradient_checkpointing,
        **_attention(settings, "actor_rollout_ref.model.override_config", model),
    }


def _actor(job: Job) -> dict[str, Any]:
    rlvr, actor = job.rlvr, ACTOR
    return {
        f"{actor}.strategy": "fsdp2",
        **_precision(rlvr, f"{actor}.fsdp_config"),
        f"{actor}.fsdp_config.seed": job.seed,  # of new adapters
        **_precision(rlvr, "actor_rollout_ref.ref.fsdp_config"),
        f"{actor}.ppo_mini_batch_size": rlvr.groups // rlvr.mini_batches,
        f"{actor}.ppo_epochs": rlvr.epochs,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": max(rlvr.pack_tokens, job.longest),
        # The term is ours; verl's engine then computes entropies with their gradient.
        f"{actor}.entropy_coeff": rlvr.entropy_bonus,
        f"{actor}.use_kl_loss": rlvr.kl > 0,  # loads the reference model; the loss is ours
        f"{actor}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{actor}.checkpoint.load_contents": ["model", "optimizer", "extra"],
        **_optimiser(rlvr, f"{actor}.optim", rlvr.learning_rate),
    }


def _precision(rlvr: Any, where: str) -> dict[str, Any]:
    """The precision, which is bf16 by default. The key `dtype` does not reach FSDP; these do."""
    kind = "bf16" if rlvr.bf16 else "fp32"
    return {
        f"+{where}.mixed_precision.{part}": value
        for part, value in (
            ("param_dtype", kind),
            ("reduce_dtype", "fp32"),
            ("buffer_dtype", "fp32"),
        )
    }


def _attention(settings: MemoryConfig, where: str, model: Path) -> dict[str, Any]:
    """The attention implementation; verl's default is flash attention."""
    chosen = own_attention(model) if settings.attention == "auto" else settings.attention
    if chosen == "flash_attention_2" and not settings.bf16:
        raise ConfigError(
            "attention",
            "flash_attention_2 does not compute in fp32",
            "set bf16=true, or attention=sdpa",
        )
    return {f"+{where}.attn_implementation": chosen}


def own_attention(model: Path) -> str | None:
    """The attention that a model's folder names; None is transformers' own choice, mostly sdpa."""
    described = model / "config.json"
    config = read_json(described) if described.is_file() else {}
    named: str | None = config.get("attn_implementation", config.get("_attn_implementation"))
    return named


def _optimiser(rlvr: Any, where: str, learning_rate: float) -> dict[str, Any]:
    return {
        f"{where}.lr": learning_rate,
        f"{where}.lr_warmup_steps": warmup_within(rlvr.warmup_steps, rlvr.steps),
        f"{where}.weight_decay": 0.0,
        f"{where}.clip_grad": gradient_limit(rlvr.max_grad_norm),
    }


def gradient_limit(max_norm: float) -> float:
    """The limit of a gradient's norm as verl reads it.

    For us 0 is off, for verl it is a limit of 0, which learns nothing. Keys are JSON, which has no
    infinity.
    """
    return max_norm or NO_LIMIT


def _critic(job: Job) -> dict[str, Any]:
    if job.rlvr.algorithm != "ppo":
        return {"critic.enable": False}
    tokens = max(job.rlvr.pack_tokens, job.longest)
    return {
        "critic.enable": True,
        "critic.strategy": "fsdp2",
        **_weights("critic.model", job.model),
        "critic.model.enable_gradient_checkpointing": job.rlvr.gradient_checkpointing,
        **_attention(job.rlvr, "critic.model.override_config", job.model),
        **_precision(job.rlvr, "critic.fsdp"),
        "critic.ppo_max_token_len_per_gpu": tokens,
        "+critic.ppo_infer_max_token_len_per_gpu": tokens,  # verl's trainer reads this one
        **_optimiser(
            job.rlvr,
            "critic.optim",
            job.rlvr.critic_learning_rate or job.rlvr.learning_rate,
        ),
    }


def _rollout(job: Job) -> dict[str, Any]:
    rollout = "actor_rollout_ref.rollout"
    return {
        f"{rollout}.name": "vllm",
        f"{rollout}.n": job.rlvr.group_size,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.temperature": job.rollout.temperature,
        # Before any mask of allowed ids, as the trainer computes them; without the temperature.
        f"{rollout}.logprobs_mode": (
            "raw_logprobs" if job.rollout.temperature in (0.0, 1.0) else "processed_logprobs"
        ),
        f"{rollout}.seed": job.seed,
        f"{rollout}.dtype": "bfloat16" if job.rlvr.bf16 else "float32",
        f"{rollout}.tensor_model_parallel_size": job.verl.tensor_parallel,
        f"{rollout}.gpu_memory_utilization": job.verl.server_memory,
        f"{rollout}.max_model_len": job.longest,
        **(_whole_prompts(rollout, job) if job.device == "cpu" else {}),
        f"{rollout}.agent.default_agent_loop": "terrella",
        f"{rollout}.agent.agent_loop_config_path": str(job.loop_config),
        f"{rollout}.agent.num_workers": job.verl.episode_workers,
        "reward.num_workers": 0,  # verdicts come with the episodes
    }


def _whole_prompts(rollout: str, job: Job) -> dict[str, Any]:
    """Servers on a CPU must not split a prompt over two passes (WHOLE_PROMPTS, vllm/server.py).

    vLLM then wants passes that hold the longest sequence. verl tries to raise its limit for that
    and fails, because its config is frozen; so it is set here.
    """
    return {
        f"{rollout}.enable_chunked_prefill": False,
        f"{rollout}.max_num_batched_tokens": max(PASS_TOKENS, job.longest),
    }


def _run(job: Job) -> dict[str, Any]:
    rlvr, steps = job.rlvr, job.rlvr.batches
    return {
        "algorithm.adv_estimator": f"terrella_{rlvr.algorithm}",  # a label for trackers
        **_schedule(rlvr),
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": steps,
        **device_keys(job.verl, job.device, job.devices),
        "trainer.save_freq": rlvr.save_every // rlvr.steps_per_batch or steps,
        "trainer.max_actor_ckpt_to_keep": 2,
        "trainer.max_critic_ckpt_to_keep": 2,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.logger": list(rlvr.report_to),
        "trainer.default_local_dir": str(job.folder),
        "trainer.project_name": "terrella",
        "trainer.experiment_name": job.folder.parent.name,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": job.verl.nodes,
        **_own_ray(),
    }


def _schedule(rlvr: RlvrConfig) -> dict[str, Any]:
    """The trainer of verl, and which groups a step takes.

    A group of verl's spans one version more than it is old.
    """
    sampler = "trainer.v1.sampler"
    if rlvr.schedule == "sync":
        return {
            f"{sampler}.custom_sampler.path": f"pkg://{PACKAGE}.refill",
            f"{sampler}.custom_sampler.name": "RefillBuffer",
        }
    return {
        "trainer.v1.trainer_mode": "colocate_async",
        "trainer.v1.colocate_async.num_warmup_batches": rlvr.staleness,
        f"{sampler}.max_off_policy_threshold": rlvr.staleness + 1,
        f"{sampler}.max_off_policy_strategy": "wait",
        f"{sampler}.custom_sampler.path": f"pkg://{PACKAGE}.stale_groups",
        f"{sampler}.custom_sampler.name": "StaleGroupBuffer",
    }


def device_keys(verl: VerlConfig, device: str, devices: int) -> dict[str, Any]:
    """Nodes, and devices per node."""
    return {
        "trainer.nnodes": verl.nodes,
        "trainer.n_gpus_per_node": devices,
        "trainer.device": device,
    }


def _own_ray() -> dict[str, Any]:
    """Settings of a Ray that we start: on loopback, without a dashboard.

    They do not apply to a cluster that is already running.
    """
    if "RAY_ADDRESS" in os.environ:
        return {}
    return {
        # Otherwise Ray joins any cluster that a file in /tmp names.
        "+ray_kwargs.ray_init.address": "local",
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+ray_kwargs.ray_init._node_ip_address": "127.0.0.1",
    }


def sft_keys(settings: SftConfig, verl: VerlConfig, model: Path, *, seed: int) -> dict[str, Any]:
    """The keys of an RL run that an SFT run takes over: model, sharding, precision, devices."""
    from verl.utils.device import get_device_name

    actor = "actor_rollout_ref.actor"
    return {
        **model_keys(settings, model),
        f"{actor}.strategy": "fsdp2",
        **_precision(settings, f"{actor}.fsdp_config"),
        f"{actor}.fsdp_config.seed": seed,  # of new adapters
        **device_keys(verl, get_device_name(), verl.devices or device_count()),
        **_own_ray(),
    }


def learner_keys(
    config: LearnerConfig, verl: VerlConfig, model: Path, head: Head, *, seed: int
) -> dict[str, Any]:
    """The keys of a learner's workers: verl's actor, or its critic for a value head."""
    from verl.utils.device import get_device_name

    role = ACTOR if head == "token" else "critic"
    sharding = f"{ACTOR}.fsdp_config" if head == "token" else "critic.fsdp"
    return {
        **model_keys(config, model),
        **_weights("critic.model", model),
        "critic.model.enable_gradient_checkpointing": config.gradient_checkpointing,
        **_attention(config, "critic.model.override_config", model),
        f"{ACTOR}.use_dynamic_bsz": True,
        "critic.use_dynamic_bsz": True,
        f"{role}.strategy": "fsdp2",
        **_precision(config, sharding),
        f"{sharding}.seed": seed,  # of new adapters
        # Rates come with each step, and the groups of parameters are ours.
        f"{role}.optim.optimizer_impl": f"{PACKAGE}.learner_worker",
        f"{role}.optim.optimizer": "GroupedAdamW",
        f"{role}.optim.weight_decay": 0.0,
        f"{role}.checkpoint.save_contents": ["model", "optimizer", "extra"],
        f"{role}.checkpoint.load_contents": ["model", "optimizer", "extra"],
        **device_keys(verl, get_device_name(), verl.devices or device_count()),
        **_own_ray(),
    }


def server_keys(config: EngineConfig, model: Path) -> dict[str, Any]:
    """The keys of standalone rollout servers: one for every `tensor_parallel` devices."""
    from verl.utils.device import get_device_name

    from terrella.engines.vllm.server import stored_dtype
    from terrella.models.presets import max_positions

    verl, rollout = config.verl, "actor_rollout_ref.rollout"
    devices, dtype = verl.devices or device_count(), config.vllm.dtype
    return {
        **_weights("actor_rollout_ref.model", model),
        f"{rollout}.name": "vllm",
        f"{rollout}.nnodes": verl.nodes,
        f"{rollout}.n_gpus_per_node": devices,
        f"{rollout}.tensor_model_parallel_size": verl.tensor_parallel,
        f"{rollout}.gpu_memory_utilization": verl.server_memory,
        # vLLM's own `auto` would load an fp32 folder in bf16.
        f"{rollout}.dtype": (stored_dtype(model) if dtype == "auto" else None) or dtype,
        f"{rollout}.max_model_len": min(config.vllm.max_model_len, max_positions(str(model))),
        f"{rollout}.logprobs_mode": f"{config.vllm.logprobs}_logprobs",
        **device_keys(verl, get_device_name(), devices),
        **_own_ray(),
    }


def device_count() -> int:
    """GPUs of this machine."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        raise EngineError(
            "verl",
            "this machine has no GPU",
            "set verl.devices=N where a platform plug-in provides devices",
        )
    return count
