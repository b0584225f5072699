"""SFT on TRL: fit the model to the masked tokens of examples, packed, without padding.

An `SFTTrainer` with its own `training_step`: each example has a mask per token (the whole reply,
states only, no states, ...), and each step trains on a fixed number of examples, in an order that
depends on the seed.
    trainer = SftTrainer(model, tokenizer, SftConfig(epochs=2), examples, Path("runs/x"), seed=0)
    trainer.fit(Path("runs/x/model"))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from terrella.algos.named_losses import WEIGHT
from terrella.core.errors import ConfigError
from terrella.core.run_folder import processes
from terrella.core.tokens import TrainExample
from terrella.engines.configs import SftConfig
from terrella.engines.training_parts import warmup_within
from terrella.engines.trl.arguments import adapters, freeze_below, precision_and_memory, trackers
from terrella.engines.trl.packed_steps import PackedSteps
from terrella.engines.trl.packs import Pack, target_indices, token_logprobs
from terrella.engines.trl.tree_attention import use_attention

LOG_EVERY = 10
"""Steps between two losses in the log; short runs have at least five."""
Item = TrainExample | Sequence[TrainExample]
"""An example, or several that share a prompt: they stay together, so that it is read once."""


class SftTrainer(PackedSteps, SFTTrainer):  # type: ignore[misc]
    """An `SFTTrainer` on packed examples; see the module's docstring."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: SftConfig,
        items: Sequence[Item],
        out: Path,
        callbacks: Sequence[Any] = (),
        *,
        seed: int,
    ) -> None:
        """`items` are read by index: a list, or a sequence that loads on demand.

        A sequence that is random already says so with `in_order`: it is read from first to last.
        """
        self.items = items
        self.settings = config
        use_attention(model, config.attention)
        freeze_below(model, config.top_layers)
        super().__init__(
            model=model,
            args=_arguments(config, items, out, seed),
            processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"index": range(len(items))}),
            data_collator=list,
            callbacks=list(callbacks),
            peft_config=adapters(model, config),
        )
        self.remove_callback(PrinterCallback)  # our own progress display shows the same metrics

    def fit(self, folder: Path) -> None:
        """Train from the last checkpoint to the end, then export. All processes call it."""
        self.train(resume_from_checkpoint=self.last_checkpoint())
        self.export(folder)

    def training_step(
        self, model: Any, inputs: list[dict[str, int]], num_items_in_batch: Any = None
    ) -> Tensor:
        """Mean cross-entropy over the masked tokens of the batch, on all processes together.

        With a column `weight` it is the weighted mean; all examples of a run have it, or none.
        """
        model.train()
        examples: list[TrainExample] = []
        for item in inputs[: self._own_items()]:
            examples += _examples(self.items[item["index"]])
        weights = float(sum(map(_weight, examples)))
        targets = torch.tensor(weights, device=self.accelerator.device)
        total = self.accelerator.reduce(targets)
        total = torch.where(total > 0, total, 1.0)  # a batch without targets
        packs = self.packed(examples, max_tokens=self.settings.pack_tokens)
        return self.train_on(model, packs, lambda net, pack: self._pack_loss(net, pack, total))

    def _own_items(self) -> int:
        """How many of this process's items are its own; the others are repeated from the start."""
        return own_items(
            items=len(self.items),
            batch_size=self.settings.batch_size,
            step=self.state.global_step,
            process=self.accelerator.process_index,
            processes=self.accelerator.num_processes,
        )

    def _pack_loss(self, model: Any, pack: Pack, total: Tensor) -> Tensor:
        with self.compute_loss_context_manager():
            logprobs, _ = token_logprobs(model, pack, attention=self.attention)
        weights = pack.columns.get(WEIGHT)
        return -(logprobs if weights is None else logprobs * weights).sum() / total


def own_items(*, items: int, batch_size: int, step: int, process: int, processes: int) -> int:
    """The number of items that a process has in a step, without those that fill the last batch.

    Each process has a contiguous part of a batch. Where an epoch's last batch is short, accelerate
    fills it with the epoch's first items, so that all processes have as many. On one process it
    does not; training must not depend on that.
    """
    share = batch_size // processes
    begun = step % math.ceil(items / batch_size) * batch_size + process * share
    return min(share, max(0, items - begun))


def _weight(example: TrainExample) -> float:
    """The targets of an example; each counts as much as its column of weights says."""
    indices = target_indices(example)
    weights = example.columns.get(WEIGHT)
    return float(len(indices) if weights is None else sum(weights[index] for index in indices))


def _examples(item: Item) -> Sequence[TrainExample]:
    return (item,) if isinstance(item, TrainExample) else item


def _arguments(config: SftConfig, items: Sequence[Item], out: Path, seed: int) -> SFTConfig:
    if config.batch_size % processes():
        raise ConfigError(
            "batch_size",
            f"{config.batch_size} examples cannot be shared by {processes()} processes",
            f"set a multiple of {processes()}",
        )
    steps = config.epochs * math.ceil(len(items) / config.batch_size)
    in_order = getattr(items, "in_order", False)
    return SFTConfig(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=config.batch_size // processes(),
        gradient_accumulation_steps=1,
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=warmup_within(config.warmup_steps, steps),
        max_grad_norm=config.max_grad_norm,
        logging_steps=max(1, min(LOG_EVERY, steps // 5)),
        report_to=trackers(config.report_to),
        save_strategy="steps" if config.save_every else "no",
        save_steps=config.save_every or 500,
        seed=seed,
        train_sampling_strategy="sequential" if in_order else "random",
        **precision_and_memory(config),
        disable_tqdm=True,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )
