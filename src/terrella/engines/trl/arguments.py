"""Translates an `RlvrConfig` into TRL's training arguments.

arguments = training_arguments(RlvrConfig(steps=100), Path("runs/x"), seed=0)
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from trl import GRPOConfig

from terrella.core.errors import ConfigError
from terrella.core.run_folder import processes
from terrella.engines.configs import MemoryConfig, RlvrConfig
from terrella.engines.ranks import join_ranks
from terrella.engines.training_parts import warmup_within

OWN_PACKAGES = ("aim", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
"""Trackers whose name in transformers is also that of their package."""

ALL_LINEAR = "all-linear"
"""PEFT's name for all linear layers but the output."""


def training_arguments(config: RlvrConfig, out: Path, seed: int) -> GRPOConfig:
    """TRL's arguments for an RLVR run.

    `beta` stays 0: TRL would load its reference model from disk, where a warmed-up model is not.
    """
    episodes = config.groups * config.group_size
    return GRPOConfig(
        output_dir=str(out),
        max_steps=config.steps,
        num_generations=config.group_size,
        per_device_train_batch_size=episodes // processes(),
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        num_iterations=config.steps_per_batch,
        beta=0.0,
        learning_rate=config.learning_rate,
        disable_dropout=True,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=warmup_within(config.warmup_steps, config.steps),
        max_grad_norm=config.max_grad_norm,
        logging_steps=1,
        save_strategy="steps" if config.save_every else "no",
        save_steps=config.save_every or 500,
        report_to=trackers(config.report_to),
        seed=seed,
        **precision_and_memory(config),
        shuffle_dataset=False,
        remove_unused_columns=False,
        disable_tqdm=True,
        max_completion_length=None,
        ddp_find_unused_parameters=False,
    )


def trackers(names: Sequence[str]) -> list[str]:
    """The trackers that transformers reports to; one that is unknown or missing is refused."""
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            raise ConfigError("report_to", f"no tracker {name!r}", f"transformers knows {known}")
        if name in OWN_PACKAGES and importlib.util.find_spec(name) is None:
            raise ConfigError("report_to", f"{name} is not installed", f"pip install {name}")
    return list(names) or ["none"]


def precision_and_memory(config: MemoryConfig) -> dict[str, Any]:
    """Arguments that both trainers share: device, precision, gradient checkpointing."""
    one_gpu_per_process()
    join_ranks()
    return {
        "use_cpu": not torch.cuda.is_available(),
        "bf16": config.bf16,
        "gradient_checkpointing": config.gradient_checkpointing,
        # The reentrant kind needs inputs with gradients, and ignores keyword arguments: a pack's
        # attention is one.
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }


def keep_full_precision(accelerator: Any) -> None:
    """Under FSDP2 with bf16, keep in fp32 what DDP keeps so; call it before a model is wrapped.

    accelerate casts outputs to bf16, and a critic's values are fp32. It also sums the gradients of
    all processes in bf16.
    """
    if not accelerator.is_fsdp2:
        return
    plugin = accelerator.state.fsdp_plugin
    if plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = replace(
            plugin.mixed_precision_policy, output_dtype=None, reduce_dtype=torch.float32
        )


def one_gpu_per_process() -> None:
    """Refuse several visible GPUs in a process that no launcher started.

    The trainer would wrap the model in `nn.DataParallel`, which splits a pack by its one row.
    """
    if "LOCAL_RANK" not in os.environ and torch.cuda.device_count() > 1:
        raise ConfigError(
            "devices",
            f"one process sees {torch.cuda.device_count()} GPUs, and each process trains on one",
            "use `accelerate launch` or `terrella launch`, or set CUDA_VISIBLE_DEVICES to one GPU",
        )


def freeze_below(model: Any, top_layers: int) -> None:
    """Leave only the last layers trainable, and what stands behind them; 0 changes nothing.

    The backward pass then ends there. Embeddings stay as they are, also as the tied output.
    """
    if not top_layers:
        return
    trunk = model.get_decoder()
    if top_layers > len(trunk.layers):
        raise ConfigError("top_layers", f"{top_layers} of a model with {len(trunk.layers)} layers")
    for weight in trunk.get_input_embeddings().parameters():
        weight.requires_grad_(False)
    for layer in trunk.layers[: len(trunk.layers) - top_layers]:
        layer.requires_grad_(False)


def lora(rank: int, alpha: int = 0, *, modules: str | Sequence[str] = ALL_LINEAR) -> Any:
    """LoRA adapters of this rank on linear layers; None (full training) for rank 0."""
    if not rank:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=alpha or 2 * rank,
        target_modules=modules if isinstance(modules, str) else list(modules),
        task_type="CAUSAL_LM",
    )


def adapters(model: Any, config: MemoryConfig) -> Any:
    """The adapters that a config asks for, on the layers that are trained; None if it has none."""
    modules: str | list[str] = ALL_LINEAR
    if config.top_layers:
        layers = model.get_decoder().layers[-config.top_layers :]
        trained = {id(each) for each in layers.modules()}
        modules = [
            name
            for name, each in model.named_modules()
            if isinstance(each, torch.nn.Linear) and id(each) in trained
        ]
    return lora(config.lora_rank, config.lora_alpha, modules=modules)
