"""What an RLVR run turns, and how it is said to TRL.

An algorithm is three choices (scale, baseline, normalisation) or a critic; everything else is a number.
    RlvrSettings.Config(algorithm="ppo", critic="shared", lam=0.95).check()
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.utils import parse_flag_from_env

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
from trl import GRPOConfig

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.engines.trl.packed_steps import processes


class RlvrSettings(Configurable):
    """What an RLVR run turns."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Sizes, algorithm, optimiser."""

        steps: int = 100
        groups: int = 16
        """Questions per step, over all processes."""
        group_size: int = 8
        algorithm: Literal["grpo", "dr_grpo", "dapo", "rloo", "ppo"] = "grpo"
        reward: Literal["outcome", "return"] = "outcome"
        """The verdict on the episode, or the sum of the world's own rewards (PPO pays them turn by turn)."""
        credit: Literal["episode", "turn"] = "episode"
        """episode: one advantage for all tokens; turn: each turn's own, from what it and later turns earned."""
        clip_low: float = 0.2
        clip_high: float = 0.2
        """Larger than `clip_low` is clip-higher."""
        kl: float = 0.0
        """0 loads no reference model."""
        updates: int = 1
        """Optimiser steps per batch of episodes; above 1 the old log-probabilities are computed once."""
        refill: int = 0
        """Extra rounds of questions in place of groups without variance; 0 only drops them."""
        keep_share: float = 1.0
        """Train on this share of the groups, those whose verdicts differ most (StarPO-S: 0.25), on each process."""
        keep_top_p: float = 1.0
        """Train on the groups that hold this share of all the spread, most uncertain first (RAGEN-2: 0.9)."""
        critic: Literal["shared", "separate"] = "shared"
        """PPO: a value head on the policy's own hidden states, or on a second trunk."""
        gamma: float = 1.0
        lam: float = 0.95
        value_coefficient: float = 0.5
        """Weight of the critic's loss; 0 leaves it at zero, where it started."""
        value_clip: float = 0.2
        whiten: bool = False
        """PPO: advantages to zero mean and unit variance over the batch."""
        world_loss: float = 0.0
        """Weight of the cross-entropy on what the world wrote between the model's turns (ECHO); 0 leaves it out."""
        learning_rate: float = 3e-4
        warmup_steps: int = 0
        max_grad_norm: float = 1.0
        pack_tokens: int = 1024
        """Tokens of one forward pass; bounds memory, changes no result."""
        share_prefix: bool = True
        """A group's prompt goes through the model once; changes no result."""
        mismatch_limit: float = 0.5
        """Stop when sampler and trainer disagree on a token's log-probability by more than this on average."""
        importance_cap: float = 0.0
        """Weigh tokens by trainer / sampler probability, at most this; 0 is off."""
        hang_limit: float = 30.0
        """Seconds without a sign of life after which the watchdog names the culprit."""
        save_every: int = 0
        seed: int = 0
        bf16: bool = False
        lora_rank: int = 0
        report_to: tuple[str, ...] = ()

        def check(self) -> None:
            """Refuse what cannot be run, before anything is loaded."""
            if self.groups % processes():
                raise ConfigError("groups", f"{self.groups} questions cannot be shared by {processes()} processes")
            if self.save_every % self.updates:
                raise ConfigError("save_every", f"{self.save_every} is no multiple of updates = {self.updates}",
                                  "a checkpoint lies between two batches")  # fmt: skip
            if self.credit == "turn" and self.algorithm == "ppo":
                raise ConfigError("credit", "a critic says what each token is worth", "use a group estimator")
            if self.world_loss and self.algorithm == "ppo":
                raise ConfigError("world_loss", "a critic values the model's own tokens only", "use a group estimator")
            if self.lora_rank and sharded():
                raise ConfigError("lora_rank", "adapters with sharded weights cannot be sampled in-process",
                                  "train adapters with DDP: they are small")  # fmt: skip


def sharded() -> bool:
    """Whether accelerate will shard the model, before there is a trainer."""
    return bool(parse_flag_from_env("ACCELERATE_USE_FSDP"))


def training_arguments(config: RlvrSettings.Config, out: Path) -> GRPOConfig:
    """TRL's words for it. `beta` stays 0: TRL would read its reference from disk, where a warm model is not."""
    episodes = config.groups * config.group_size
    return GRPOConfig(
        output_dir=str(out), max_steps=config.steps, num_generations=config.group_size,
        per_device_train_batch_size=episodes // processes(), steps_per_generation=1, gradient_accumulation_steps=1,
        num_iterations=config.updates, beta=0.0, learning_rate=config.learning_rate, disable_dropout=True,
        lr_scheduler_type="constant_with_warmup", warmup_steps=config.warmup_steps, max_grad_norm=config.max_grad_norm,
        logging_steps=1, save_strategy="steps" if config.save_every else "no", save_steps=config.save_every or 500,
        report_to=list(config.report_to) or "none", seed=config.seed, bf16=config.bf16, gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(), shuffle_dataset=False, remove_unused_columns=False, disable_tqdm=True,
        max_completion_length=None, ddp_find_unused_parameters=False,
    )  # fmt: skip


def lora(rank: int) -> Any:
    """Adapters of this rank on all linear layers; None for 0, full training."""
    if not rank:
        return None
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
