"""SFT at an endpoint: mean cross-entropy over the masked tokens of a batch, as on TRL.

fit_examples(trainer, examples, SftConfig(), saved, seed=0, show=show)
losses = saved.curve
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from terrella.algos.named_losses import WEIGHT
from terrella.core.seeds import SAMPLE_STREAM, stream
from terrella.core.tokens import TrainExample
from terrella.engines.configs import SftConfig
from terrella.engines.interface import Examples
from terrella.engines.tinker.trainer import AdapterTrainer, SavedProgress, cosine_rate
from terrella.engines.training_parts import warmup_within

Show = Callable[[int, dict[str, float]], None]
"""Called with the number of finished steps and their metrics."""


def sft_steps(items: int, config: SftConfig) -> int:
    return config.epochs * math.ceil(items / config.batch_size)


def fit_examples(
    trainer: AdapterTrainer,
    examples: Examples,
    config: SftConfig,
    saved: SavedProgress,
    *,
    seed: int,
    show: Show,
) -> None:
    """Train from the saved step to the end; losses are in `saved.curve`."""
    steps = sft_steps(len(examples), config)
    rate_at = partial(
        cosine_rate,
        peak=config.learning_rate,
        warmup=warmup_within(config.warmup_steps, steps),
        steps=steps,
    )
    for step in range(saved.step, steps):
        batch = _batch(examples, step, config, seed)
        row = {"step": step + 1, **_train_step(trainer, batch, config, rate_at(step))}
        saved.curve.append(row)
        show(step + 1, row)
        if config.save_every and (step + 1) % config.save_every == 0:
            saved.save(trainer.adapter, step + 1)
    saved.save(trainer.adapter, steps)


def _batch(examples: Examples, step: int, config: SftConfig, seed: int) -> list[TrainExample]:
    """The examples of a step, in an order that depends on the seed and the epoch alone."""
    per_epoch = math.ceil(len(examples) / config.batch_size)
    epoch, position = divmod(step, per_epoch)
    order = stream(SAMPLE_STREAM, seed, epoch).permutation(len(examples))
    chosen: list[TrainExample] = []
    for index in order[position * config.batch_size : (position + 1) * config.batch_size]:
        item = examples[int(index)]
        chosen += [item] if isinstance(item, TrainExample) else item
    return chosen


def _train_step(
    trainer: AdapterTrainer, batch: list[TrainExample], config: SftConfig, rate: float
) -> dict[str, float]:
    rows = trainer.rows(batch)
    now_M = trainer.logprobs(rows)
    weight_M, share = _weights(batch)
    metrics = trainer.step(
        rows,
        now_M,
        weight_M * -share,
        learning_rate=rate,
        max_grad_norm=config.max_grad_norm,
    )
    loss = float(-(now_M * weight_M).sum()) * share
    return {"loss": loss, "learning_rate": rate} | metrics


def _weights(batch: list[TrainExample]) -> tuple[Tensor, float]:
    """[M]: the weight of each target, 1 without a column of weights; and 1 / their sum."""
    weights = [
        weight
        for example in batch
        for weight, is_target in zip(
            example.columns.get(WEIGHT, [1.0] * len(example.mask)), example.mask, strict=True
        )
        if is_target
    ]
    total = sum(weights)
    return torch.tensor(weights), 1.0 / total if total > 0 else 0.0
