"""Our typed config in verl's keys: the one place where the two meet. What is not here is verl's default.

verl has about a thousand keys; these are the ones that say what our config says. `compose` checks every key, ours and
those of `--set verl.<key>=...`, against verl's own schema before anything starts.
    config = compose(verl_keys(job))
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.algos.estimators import ESTIMATORS
from terrella.core.errors import ConfigError
from terrella.engines.episodes.driver import Driver
from terrella.engines.verl.verl_settings import VerlSettings

PACKAGE = "terrella.engines.verl"
AGGREGATION = {"episode": "seq-mean-token-mean", "token": "token-mean", "constant": "seq-mean-token-sum-norm"}
"""verl's words for the three normalisations: only its KL term and entropy read them, our loss brings its own shares."""

TRL_ONLY = {"refill": 0, "keep_share": 1.0, "keep_top_p": 1.0, "world_loss": 0.0, "credit": "episode"}
"""Settings that only the other engine has, and the values that ask for nothing."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the keys are made from."""

    model: Path
    """A plain Hugging Face folder."""
    folder: Path
    """Checkpoints, plan and figures; on storage that all nodes share."""
    rlvr: Any
    """`RlvrSettings.Config`."""
    driver: Driver.Config
    verl: VerlSettings.Config
    device: str
    devices: int
    """Per node."""

    @property
    def plan(self) -> Path:
        """Where the plan lies."""
        return self.folder / "plan.json"

    @property
    def loops(self) -> Path:
        """Where the agent loop is named."""
        return self.folder / "agent_loops.yaml"

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.verl.prompt_tokens + self.driver.episode_tokens


def check(rlvr: Any) -> None:
    """Refuse what verl does otherwise or not at all, instead of doing something else under the same name."""
    for name, neutral in TRL_ONLY.items():
        if getattr(rlvr, name, neutral) != neutral:
            raise ConfigError(f"rlvr.{name}", "is not there on verl yet", f"rlvr.{name}={neutral}, or engine=trl")
    if rlvr.algorithm == "ppo" and rlvr.critic == "shared":
        raise ConfigError("rlvr.critic", "verl's critic is a model of its own", "rlvr.critic=separate")
    if rlvr.steps % rlvr.updates:
        raise ConfigError("rlvr.steps", f"{rlvr.steps} is no multiple of updates = {rlvr.updates}")


def verl_keys(job: Job) -> dict[str, Any]:
    """Every key that differs from verl's default; those that the user set come last and win."""
    return {**_data(job), **_model(job), **_actor(job), **_critic(job), **_rollout(job), **_run(job)}


def _data(job: Job) -> dict[str, Any]:
    return {
        "data.train_files": str(job.plan), "data.val_files": str(job.plan), "data.shuffle": False,
        "data.custom_cls.path": f"pkg://{PACKAGE}.task_rows", "data.custom_cls.name": "TaskRows",
        "data.train_batch_size": job.rlvr.groups, "data.dataloader_num_workers": 0,
        "data.max_prompt_length": job.verl.prompt_tokens, "data.max_response_length": job.driver.episode_tokens,
    }  # fmt: skip


def _model(job: Job) -> dict[str, Any]:
    return {
        "actor_rollout_ref.model.path": str(job.model),
        "actor_rollout_ref.model.external_lib": f"{PACKAGE}.registered",
        "actor_rollout_ref.model.lora_rank": job.rlvr.lora_rank,
        "actor_rollout_ref.model.lora_alpha": 2 * job.rlvr.lora_rank or 16,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    }


def _actor(job: Job) -> dict[str, Any]:
    rlvr, actor = job.rlvr, "actor_rollout_ref.actor"
    return {
        f"{actor}.strategy": "fsdp2", **_precision(rlvr, f"{actor}.fsdp_config"),
        **_precision(rlvr, "actor_rollout_ref.ref.fsdp_config"),
        f"{actor}.ppo_mini_batch_size": rlvr.groups, f"{actor}.ppo_epochs": rlvr.updates,
        f"{actor}.use_dynamic_bsz": True, f"{actor}.ppo_max_token_len_per_gpu": max(rlvr.pack_tokens, job.longest),
        f"{actor}.clip_ratio_low": rlvr.clip_low, f"{actor}.clip_ratio_high": rlvr.clip_high,
        f"{actor}.policy_loss.loss_mode": "terrella",
        f"{actor}.loss_agg_mode": AGGREGATION[ESTIMATORS[rlvr.algorithm].normalise],
        f"{actor}.loss_scale_factor": job.driver.turn_tokens,
        f"{actor}.use_kl_loss": rlvr.kl > 0, f"{actor}.kl_loss_coef": rlvr.kl, f"{actor}.kl_loss_type": "low_var_kl",
        f"{actor}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{actor}.checkpoint.load_contents": ["model", "optimizer", "extra"],
        **_optimiser(rlvr, f"{actor}.optim"),
    }  # fmt: skip


def _precision(rlvr: Any, where: str) -> dict[str, Any]:
    """Verl computes in bf16 unless told otherwise; its key `dtype` does not reach FSDP, `mixed_precision` does."""
    kind = "bf16" if rlvr.bf16 else "fp32"
    return {f"+{where}.mixed_precision.{part}": value for part, value in
            (("param_dtype", kind), ("reduce_dtype", "fp32"), ("buffer_dtype", "fp32"))}  # fmt: skip


def _optimiser(rlvr: Any, where: str) -> dict[str, Any]:
    return {
        f"{where}.lr": rlvr.learning_rate, f"{where}.lr_warmup_steps": rlvr.warmup_steps,
        f"{where}.weight_decay": 0.0, f"{where}.clip_grad": rlvr.max_grad_norm,
    }  # fmt: skip


def _critic(job: Job) -> dict[str, Any]:
    if job.rlvr.algorithm != "ppo":
        return {"critic.enable": False}
    return {
        "critic.enable": True, "critic.strategy": "fsdp2", "critic.model.path": str(job.model),
        "critic.model.external_lib": f"{PACKAGE}.registered", "critic.model.enable_gradient_checkpointing": False,
        **_precision(job.rlvr, "critic.fsdp"),
        "critic.ppo_max_token_len_per_gpu": max(job.rlvr.pack_tokens, job.longest),
        **_optimiser(job.rlvr, "critic.optim"),
    }  # fmt: skip


def _rollout(job: Job) -> dict[str, Any]:
    rollout = "actor_rollout_ref.rollout"
    return {
        f"{rollout}.name": "vllm", f"{rollout}.n": job.rlvr.group_size, f"{rollout}.calculate_log_probs": True,
        f"{rollout}.temperature": job.driver.temperature, f"{rollout}.seed": job.rlvr.seed,
        f"{rollout}.dtype": "bfloat16" if job.rlvr.bf16 else "float32",
        f"{rollout}.tensor_model_parallel_size": job.verl.tensor_parallel,
        f"{rollout}.gpu_memory_utilization": job.verl.server_memory, f"{rollout}.max_model_len": job.longest,
        f"{rollout}.agent.default_agent_loop": "terrella", f"{rollout}.agent.agent_loop_config_path": str(job.loops),
        f"{rollout}.agent.num_workers": job.verl.episode_workers,
        "reward.num_workers": 0,  # verdicts come with the episodes
    }  # fmt: skip


def _run(job: Job) -> dict[str, Any]:
    rlvr, steps = job.rlvr, job.rlvr.steps // job.rlvr.updates
    return {
        "algorithm.adv_estimator": f"terrella_{rlvr.algorithm}", "algorithm.gamma": rlvr.gamma,
        "algorithm.lam": rlvr.lam, "trainer.total_epochs": 1, "trainer.total_training_steps": steps,
        "trainer.nnodes": job.verl.nodes, "trainer.n_gpus_per_node": job.devices, "trainer.device": job.device,
        "trainer.save_freq": rlvr.save_every // rlvr.updates or steps, "trainer.max_actor_ckpt_to_keep": 2,
        "trainer.max_critic_ckpt_to_keep": 2, "trainer.val_before_train": False, "trainer.test_freq": -1,
        "trainer.logger": list(rlvr.report_to), "trainer.default_local_dir": str(job.folder),
        "trainer.project_name": "terrella", "trainer.experiment_name": job.folder.parent.name,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": job.verl.nodes,
        **_own_ray(),
    }  # fmt: skip


def _own_ray() -> dict[str, Any]:
    """A Ray of our own listens on loopback and shows no dashboard; one that is there was started by somebody else."""
    if "RAY_ADDRESS" in os.environ:
        return {}
    return {"+ray_kwargs.ray_init.include_dashboard": False, "+ray_kwargs.ray_init._node_ip_address": "127.0.0.1"}


def compose(keys: Mapping[str, Any], extra: Sequence[str] = ()) -> Any:
    """The whole config of verl with these keys; an unknown key or a value of the wrong type fails here, by name."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    refused = (HydraException, OmegaConfBaseException)
    mine = [f"{name}={_text(value)}" for name, value in keys.items()]
    try:
        return _composed([*mine, *extra])
    except refused:
        for assignment in extra:  # which of them was it?
            try:
                _composed([assignment])
            except refused as error:
                what = " ".join(str(error).split())[:300]
                raise ConfigError(f"verl.{assignment}", what, _remedy(assignment)) from error
        raise


def _composed(assignments: list[str]) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return hydra_compose("ppo_trainer", assignments)


def _text(value: Any) -> str:
    """A value in Hydra's grammar; JSON is part of it, except for words that need no quotes."""
    return json.dumps(value)


def _remedy(assignment: str) -> str:
    name = assignment.partition("=")[0].lstrip("+")
    return f"see verl/trainer/config/ppo_trainer.yaml; verl.+{name}=... adds a key that its schema does not have"
