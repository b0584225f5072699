"""Five GRPO steps with LoRA on one-push sokoban.

The same run for the in-process sampler and for a vLLM server.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
import torch

from terrella.codecs.chat_tokens import ChatCodec
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.trl.rlvr_trainer import RlvrTrainer
from terrella.engines.trl.sft_trainer import SftTrainer
from terrella.models.presets import load_model
from terrella.pipelines.warmup import warmup_examples
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks
from terrella.worlds.sokoban import Sokoban

WORLD = Sokoban.Config(size=5, longest=1, max_steps=2)
"""Rooms that one right push solves.

SmolLM2 knows no sokoban, but guessing right now and then gives GRPO a signal.
"""
STEPS = 5


def warm_model(out: Path) -> tuple[Any, Any]:
    """SmolLM2 that has seen the reply format; it does not follow it unshown."""
    model, tokenizer = load_model("smollm2")
    rows = warmup_examples(WORLD, ChatCodec(tokenizer), ask="action", count=15, seed=0)
    settings = SftConfig(batch_size=3, learning_rate=2e-4, warmup_steps=1)
    SftTrainer(model, tokenizer, settings, rows, out, seed=0).train()
    return model, tokenizer


def grpo_trainer(model: Any, tokenizer: Any, out: Path) -> RlvrTrainer:
    """Two groups of four, two turns of at most 16 tokens."""
    rollout = Rollout(
        Rollout.Config(world=WORLD, max_turns=2, turn_tokens=16), ChatCodec(tokenizer)
    )
    settings = RlvrConfig(
        steps=STEPS, groups=2, group_size=4, reward="return", lora_rank=8, learning_rate=1e-3
    )
    return RlvrTrainer(model, tokenizer, settings, rollout, AgentTasks(), out, seed=0)


def metrics(trainer: RlvrTrainer) -> list[dict[str, float]]:
    """The logged rows of the steps."""
    return [row for row in trainer.state.log_history if "reward" in row]


def logits_of(model: Any, vocabulary: int) -> torch.Tensor:
    """On fixed tokens, computed in fp64: an fp32 pass through this model is itself off by 2e-4.

    Merged and unmerged adapters round differently on the way; what is compared here is the weights.
    """
    ids = torch.randint(vocabulary, (2, 48), generator=torch.Generator().manual_seed(0))
    exact = copy.deepcopy(model).double().eval()
    for module in exact.modules():  # accelerate's and TRL's are bound to the fp32 original
        module.__dict__.pop("forward", None)
    with torch.inference_mode():
        return exact(ids).logits
