"""SFT on TRL: fit the model to chosen tokens of episodes, packed, without padding.

An `SFTTrainer` whose step is ours: rows carry a mask per token (whole reply, states only, no states ...), and each step
trains on a fixed number of rows in an order that the seed decides.
    SftTrainer(model, tokenizer, SftSettings.Config(epochs=2), rows, out=Path("runs/x/sft")).fit(Path("runs/x/model"))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from terrella.core.config import Configurable
from terrella.engines.trl.packed_steps import PackedSteps, processes
from terrella.engines.trl.packs import Pack, TrainingRow, token_logprobs
from terrella.engines.trl.rlvr_settings import lora
from terrella.engines.trl.tree_attention import use_tree_attention

Row = TrainingRow | Sequence[TrainingRow]
"""A row, or several that share a prompt: they stay together, so that it is read once."""


class SftSettings(Configurable):
    """What an SFT run turns."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Sizes and optimiser."""

        epochs: int = 1
        batch_rows: int = 64
        """Rows per optimiser step, over all processes."""
        learning_rate: float = 1e-3
        warmup_steps: int = 10
        max_grad_norm: float = 1.0
        pack_tokens: int = 1024
        save_every: int = 0
        seed: int = 0
        bf16: bool = False
        lora_rank: int = 0
        """Adapters of this rank on all linear layers; 0 trains everything. An export holds them merged."""
        report_to: tuple[str, ...] = ()


class SftTrainer(PackedSteps, SFTTrainer):  # type: ignore[misc]
    """See the module's docstring."""

    def __init__(
        self, model: Any, tokenizer: Any, config: SftSettings.Config, rows: Sequence[Row], out: Path,
        callbacks: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """`rows` are read by index: a list, or anything that loads on demand."""
        self.rows, self.settings = rows, config
        use_tree_attention(model)
        super().__init__(
            model=model, args=_arguments(config, len(rows), out), processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"index": range(len(rows))}), data_collator=list, callbacks=list(callbacks),
            peft_config=lora(config.lora_rank),
        )  # fmt: skip
        self.remove_callback(PrinterCallback)  # its lines repeat what our own display says

    def fit(self, folder: Path) -> None:
        """Train from the last checkpoint to the end, then export. All processes call it."""
        self.train(resume_from_checkpoint=self.last_checkpoint())
        self.export(folder)

    def training_step(self, model: Any, inputs: list[dict[str, int]], num_items_in_batch: Any = None) -> Tensor:
        """Cross-entropy over the masked tokens of this batch, a mean over all of them on all processes."""
        model.train()
        rows = [row for item in inputs for row in _bundle(self.rows[item["index"]])]
        targets = torch.tensor(float(sum(sum(row.mask) for row in rows)), device=self.accelerator.device)
        total = self.accelerator.reduce(targets).clamp(min=1)
        packs = self.packed(rows, max_tokens=self.settings.pack_tokens)
        return self.train_on(model, packs, lambda net, pack: self._pack_loss(net, pack, total))

    def _pack_loss(self, model: Any, pack: Pack, total: Tensor) -> Tensor:
        with self.compute_loss_context_manager():
            logprobs, _ = token_logprobs(model, pack, attention=self.attention)
        return -logprobs.sum() / total


def _bundle(row: Row) -> Sequence[TrainingRow]:
    return (row,) if isinstance(row, TrainingRow) else row


def _arguments(config: SftSettings.Config, rows: int, out: Path) -> SFTConfig:
    return SFTConfig(
        output_dir=str(out), max_steps=config.epochs * math.ceil(rows / config.batch_rows),
        per_device_train_batch_size=config.batch_rows // processes(), gradient_accumulation_steps=1,
        learning_rate=config.learning_rate, lr_scheduler_type="cosine", warmup_steps=config.warmup_steps,
        max_grad_norm=config.max_grad_norm, logging_steps=10, report_to=list(config.report_to) or "none",
        save_strategy="steps" if config.save_every else "no", save_steps=config.save_every or 500, seed=config.seed,
        bf16=config.bf16, gradient_checkpointing=False, use_cpu=not torch.cuda.is_available(), disable_tqdm=True,
        remove_unused_columns=False, dataset_kwargs={"skip_prepare_dataset": True}, max_length=None,
    )  # fmt: skip
