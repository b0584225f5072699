"""verl and vLLM on a CPU: `environment()` for processes, `SETTINGS` for the command line."""

import importlib.util
import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENGINE_SETTINGS = (
    "engine=verl",
    "verl.devices=2",
    "verl.episode_workers=1",
    "verl.prompt_tokens=128",
    "verl.ray_kwargs.ray_init.num_cpus=32",
    "verl.+ray_kwargs.ray_init.num_gpus=2",
    "verl.+ray_kwargs.ray_init.object_store_memory=300000000",
    "verl.actor_rollout_ref.model.use_remove_padding=false",
    "verl.actor_rollout_ref.actor.use_torch_compile=false",
    "verl.actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "verl.actor_rollout_ref.rollout.enforce_eager=true",
    "verl.actor_rollout_ref.rollout.free_cache_engine=false",
    "verl.+actor_rollout_ref.rollout.enable_sleep_mode=false",
    "verl.actor_rollout_ref.rollout.load_format=auto",
    "verl.actor_rollout_ref.rollout.max_num_seqs=64",
    # 128 on CPUs: longer than these prompts
    "verl.+actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=32",
    "verl.critic.model.use_remove_padding=false",
)
"""Two processes stand in for two GPUs."""
SETTINGS = (*ENGINE_SETTINGS, "model=tiny-0.3m-vllm")
LOCAL = ("sampler=local",)
"""Evaluation in the command's process: servers take longer to start than it takes."""


def engine_config() -> Any:
    """The engine of `ENGINE_SETTINGS`."""
    from terrella.core.config_override import override
    from terrella.engines.configs import EngineConfig

    return override(EngineConfig(), ENGINE_SETTINGS)


def wide_model(folder: Path) -> None:
    """A tiny model that vLLM can serve, with large weights: it prefers some tokens to others."""
    import torch

    from terrella.models.export import export_model
    from terrella.models.presets import load_model

    model, tokenizer = load_model("tiny-0.3m-vllm")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0 if weight.ndim > 1 else 1.0)
    export_model(model, tokenizer, folder)


RANK = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Variables that a process group leaves behind in the environment."""


def environment() -> dict[str, str]:
    """The environment of a command that runs verl on this machine.

    The variables of a rank are removed: the command is not a rank of the process that starts it.
    """
    ours = {name: value for name, value in os.environ.items() if name not in RANK}
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH", ""))))
    return {
        **ours,
        "PYTHONPATH": path,
        "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_ENGINE_VENDOR": "nvidia",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on loopback
        "RAY_DEDUP_LOGS": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_TARGET_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
        # On a loaded machine processes start slowly, which is not a failure. Workers run with the
        # same niceness as the command itself.
        "RAY_worker_register_timeout_seconds": "600",
        "RAY_worker_niceness": "0",
    }


def use() -> None:
    """Let this process import verl; skips the test module where it is not installed."""
    import sys
    import warnings

    import pytest

    if not all(
        importlib.util.find_spec(name) for name in ("verl", "vllm", "transfer_queue", "tensordict")
    ):
        pytest.skip(
            "verl is not installed here: .ci/verl makes the environment", allow_module_level=True
        )
    os.environ.update(environment())
    sys.path.insert(0, str(HERE))
    import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

    with warnings.catch_warnings():  # about engines that are not installed
        warnings.simplefilter("ignore")
        import verl.workers.engine  # noqa: F401
        from verl.trainer.ppo.v1 import trainer_sync  # noqa: F401
