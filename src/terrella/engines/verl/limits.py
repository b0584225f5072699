"""What verl does not have, refused by name before anything starts. verl need not be installed.

check_run(EngineConfig(engine="verl"), rlvr=RlvrConfig(algorithm="ppo"))  # ConfigError
"""

from __future__ import annotations

from terrella.core.errors import ConfigError
from terrella.core.tokens import Head, History
from terrella.engines.configs import EngineConfig, LearnerConfig, RlvrConfig, VerlConfig
from terrella.engines.training_parts import changed_fields, has_value_head, training_parts

INSTEAD = {
    "memory": "verl.server_memory",
    "tensor_parallel": "verl.tensor_parallel",
    "devices": "verl.devices",
    "sleep": "verl.actor_rollout_ref.rollout.free_cache_engine",
    "max_num_seqs": "verl.actor_rollout_ref.rollout.max_num_seqs",
    "arguments": "verl.+actor_rollout_ref.rollout.engine_kwargs.vllm.OPTION",
    "data_parallel": "",
    "requests": "",
    "request_seconds": "",
    "sync_folder": "",
}
"""Settings of a server of ours, and those of verl's servers, if they have one. dtype, logprobs and
max_model_len are the same for both."""
BESIDE_TRAINER = ("memory", "sleep")
"""How a server of ours shares a GPU with TRL: recipes that name one (sampler=vllm) set it. verl's
servers have `verl.server_memory`, and always make room for training."""
SPLIT_MODEL = ("ulysses_sequence_parallel_size", "strategy", "megatron")
"""Words in keys of verl's by which several devices may share a row: verl then counts for itself."""


def check_run(
    config: EngineConfig, *, rlvr: RlvrConfig | None = None, history: History = "sampled"
) -> None:
    """Refuse a run from its settings alone."""
    if config.sampler != "local":
        _check_servers(config)
    for where, part in training_parts(config, rlvr):
        if part.top_layers:
            raise ConfigError(
                f"{where}.top_layers", "verl trains all layers", "set 0, or use engine=trl"
            )
        if isinstance(part, LearnerConfig):
            check_learner(part, where, head="value" if has_value_head(where) else "token")
    if rlvr is not None and rlvr.steps:
        check(rlvr)
        check_shares(rlvr, config.verl)
        check_history(history)
        check_recording(getattr(config, "record_every", 0))


def check(rlvr: RlvrConfig) -> None:
    """Refuse settings that verl does not have, or that mean something else there."""
    rlvr.check(processes=1)
    if rlvr.algorithm == "ppo":
        _check_critic(rlvr)
    if rlvr.steps % rlvr.steps_per_batch:
        raise ConfigError(
            "rlvr.steps",
            f"{rlvr.steps} is not a multiple of mini_batches x epochs = {rlvr.steps_per_batch}",
            "verl ends after a whole batch",
        )


def check_learner(part: LearnerConfig, where: str, *, head: Head) -> None:
    """Refuse a learner that verl does not have."""
    if head == "token":
        return
    if part.value_heads > 1:
        raise ConfigError(
            f"{where}.value_heads",
            f"{part.value_heads}, and verl's value models have one head",
            f"set {where}.value_heads=1, or use engine=trl",
        )
    if part.lora_rank:
        raise ConfigError(
            f"{where}.lora_rank",
            "verl's value models have no adapters",
            "set 0, or use engine=trl",
        )


def check_shares(rlvr: RlvrConfig, verl: VerlConfig) -> None:
    """Refuse mini-batches that the devices cannot share equally.

    verl notices in its first update: after servers were started and episodes were played. Where
    `verl.devices` is 0, the devices are not known yet.
    """
    devices = verl.nodes * verl.devices
    if not devices or any(word in key for key in verl.keys for word in SPLIT_MODEL):
        return
    episodes = rlvr.groups // rlvr.mini_batches * rlvr.group_size
    if episodes % devices:
        raise ConfigError(
            "rlvr.groups",
            f"{episodes} episodes of a mini-batch (groups / mini_batches x group_size) cannot be "
            f"shared by {devices} devices",
            f"make them a multiple of {devices}",
        )


def _check_critic(rlvr: RlvrConfig) -> None:
    if rlvr.critic == "shared":
        raise ConfigError(
            "rlvr.critic", "verl's critic is a separate model", "use rlvr.critic=separate"
        )
    if rlvr.lora_rank:
        raise ConfigError(
            "rlvr.lora_rank",
            "verl's critic has no adapters, all of its weights would be trained",
            "use rlvr.lora_rank=0, a group estimator or engine=trl",
        )


def check_history(history: History) -> None:
    """Refuse turns with prompts of their own."""
    if history != "sampled":
        raise ConfigError(
            "history",
            f"history={history} gives each turn a prompt of its own; an episode of verl's is one "
            "sequence",
            "use engine=trl or engine=tinker, or set history=sampled",
        )


def check_recording(record_every: int) -> None:
    if record_every:
        raise ConfigError(
            "record_every", "tokens are kept by engine=trl and tinker only", "set record_every=0"
        )


def _check_servers(config: EngineConfig) -> None:
    """Refuse settings of a server that is not started: verl starts its own."""
    for name, default in changed_fields(config.vllm).items():
        if config.sampler == "vllm" and name in BESIDE_TRAINER:
            continue
        if name in INSTEAD:
            raise ConfigError(
                f"vllm.{name}",
                f"with sampler={config.sampler} the servers are verl's, which do not read it",
                f"set {INSTEAD[name]}, and vllm.{name}={default}"
                if INSTEAD[name]
                else f"set vllm.{name}={default}",
            )
