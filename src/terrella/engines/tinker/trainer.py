"""Trains an adapter at an endpoint on any loss of log-probabilities, exactly.

The loss is computed here, from log-probabilities that the endpoint returns. Its gradient with
respect to them goes back as advantages of `importance_sampling`, so clipping, KL penalties and
ratios per episode are those of `algos/losses.py`, whatever losses the endpoint has. This costs one
forward pass more than a named loss would.
    trainer = AdapterTrainer(adapter, reduction, TinkerConfig())
    now_M = trainer.logprobs(rows)
    trainer.step(rows, now_M, gradient_M, learning_rate=1e-4, max_grad_norm=1.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from terrella.core.files import (
    read_json,
    read_json_lines,
    remove_folder,
    write_json,
    write_json_lines,
)
from terrella.core.tokens import TrainExample
from terrella.engines.checkpoints import (
    PREFIX,
    listed_file,
    newest_complete,
    remove_old,
    write_manifest,
)
from terrella.engines.configs import TinkerConfig
from terrella.engines.interface import Curve
from terrella.engines.tinker.reduction import Reduction, grad_norm
from terrella.engines.tinker.rows import Columns, PaddedRows
from terrella.engines.tinker.sampler import TinkerSampler

PROGRESS, CURVE = "progress.json", "curve.jsonl"


class AdapterTrainer:
    """An adapter with the endpoint's reduction undone."""

    def __init__(
        self, adapter: Any, reduction: Reduction, config: TinkerConfig, *, context_tokens: int = 0
    ) -> None:
        """`context_tokens` are what the endpoint can read; 0 sets no bound."""
        self.adapter = adapter
        self.reduction = reduction
        self.config = config
        self.context_tokens = context_tokens

    def sampler(self, *, beat: Callable[[], None] | None = None) -> TinkerSampler:
        """A sampler of the current weights. One of older weights must never be sampled again."""
        return TinkerSampler(self.adapter.sampler(), context_tokens=self.context_tokens, beat=beat)

    def rows(self, examples: Sequence[TrainExample]) -> PaddedRows:
        config = self.config
        return PaddedRows(examples, pad_tokens=config.pad_tokens, batch_rows=config.batch_rows)

    def logprobs(self, rows: PaddedRows) -> Tensor:
        """[M], of the targets under the current weights."""
        return adapter_logprobs(self.adapter, rows)

    def step(
        self,
        rows: PaddedRows,
        now_M: Tensor,
        gradient_M: Tensor,
        *,
        learning_rate: float,
        max_grad_norm: float,
    ) -> dict[str, float]:
        """Take one step against the gradient of a loss with respect to the log-probabilities."""
        scale = self.reduction.scale(rows=len(rows.rows), length=rows.length)
        advantages = rows.everywhere(-gradient_M * scale)
        calls = list(rows.calls(rows.everywhere(now_M), advantages))
        metrics = self.adapter.train(
            calls,
            learning_rate=learning_rate,
            max_grad_norm=max_grad_norm,
            beta2=self.config.beta2,
        )
        norm = grad_norm(metrics)
        return {} if norm is None else {"grad_norm": norm}


def adapter_logprobs(adapter: Any, rows: PaddedRows) -> Tensor:
    columns: Columns = []
    for call in rows.calls():
        columns += adapter.forward(call)
    return rows.at_targets(columns)


class SavedProgress:
    """Which step a run has reached, and the endpoint's state of it, as checkpoints on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = ""
        self.env_steps = 0
        self.curve: Curve = []
        self.step = newest_complete(folder)
        if self.step:
            newest = folder / f"{PREFIX}{self.step}"
            saved = read_json(listed_file(newest, PROGRESS))
            self.state, self.env_steps = saved["state"], saved["env_steps"]
            self.curve = read_json_lines(listed_file(newest, CURVE))

    def save(self, adapter: Any, step: int, *, env_steps: int = 0) -> None:
        """Save the adapter at the endpoint, then its path here: a killed run finds the last one."""
        if self.state and self.step == step:
            return
        self.step, self.state = step, adapter.save_state(f"step-{step}")
        self.env_steps = env_steps
        newest = self.folder / f"{PREFIX}{step}"
        remove_folder(newest)  # left by a killed run
        newest.mkdir(parents=True)
        write_json_lines(newest / CURVE, self.curve)
        write_json(newest / PROGRESS, {"state": self.state, "env_steps": env_steps})
        write_manifest(newest, step)
        remove_old(self.folder)


def constant_rate(step: int, *, peak: float, warmup: int) -> float:
    """The learning rate of TRL's `constant_with_warmup`; `step` counts from 0."""
    return peak * min(1.0, step / warmup) if warmup else peak


def cosine_rate(step: int, *, peak: float, warmup: int, steps: int) -> float:
    """The learning rate of TRL's `cosine`; `step` counts from 0."""
    if step < warmup:
        return peak * step / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * 0.5 * (1.0 + math.cos(math.pi * done))
