"""What both TRL trainers share: optimizer steps over packs, metrics, checkpoints, exports.

A mixin for a Hugging Face `Trainer` (TRL's are). The losses of a step's packs are summed; their
weights add up over the batch and over all processes, so that results do not depend on packing.
    class MyTrainer(PackedSteps, SFTTrainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            return self.train_on(model, self.packed(examples, max_tokens=2048), self.pack_loss)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from terrella.core.tokens import TrainExample
from terrella.engines.trl.checkpoint import AtomicCheckpoints
from terrella.engines.trl.critic import NAME as CRITIC
from terrella.engines.trl.packs import Pack, pack_episodes
from terrella.models.export import MergedWeights, write_folder


def processes() -> int:
    """The number of training processes, as the launcher set it. Works before anything starts."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class PackedSteps(AtomicCheckpoints):
    """Mixin for `transformers.Trainer`."""

    accelerator: Any
    model: Any
    processing_class: Any
    _metrics: Any

    @property
    def policy(self) -> Any:
        """The model without accelerate's wrappers."""
        return self.accelerator.unwrap_model(self.model)

    def plain_weights(self) -> MergedWeights:
        """The weights of a plain causal LM: adapters merged, no critic."""
        return MergedWeights(self.policy, without=CRITIC)

    def export(self, folder: Path) -> None:
        """Write a plain Hugging Face folder: adapters merged, weights gathered, no critic.

        All processes call it.
        """
        # On all processes, not only the main one: this gathers sharded weights.
        weights = self.plain_weights().on_host(keep=self.accelerator.is_main_process)
        if self.accelerator.is_main_process:
            write_folder(self.policy, weights, self.processing_class, folder)
        self.accelerator.wait_for_everyone()

    @property
    def attention(self) -> str:
        """The model's attention implementation, which decides how packs are masked."""
        return str(self.model.config._attn_implementation)

    def packed(
        self, examples: Sequence[TrainExample], *, max_tokens: int, share_prefix: bool = True
    ) -> list[Pack]:
        """Examples as packs on this process's device.

        Prompts are shared where that is faster for this model.
        """
        # Flex attention skips masked blocks, so sharing a prompt always pays there.
        width = None if self.attention == "flex_attention" else self.model.config.hidden_size
        packs = pack_episodes(
            examples, max_tokens=max_tokens, share_prefix=share_prefix, width=width
        )
        return [pack.to(self.accelerator.device) for pack in packs]

    def train_on(
        self, model: Any, packs: Sequence[Pack], loss_of: Callable[[Any, Pack], Tensor]
    ) -> Tensor:
        """Run backward over all packs and exchange gradients once.

        The mean of the returned values over all processes is the loss of the batch.
        """
        total: Tensor = torch.zeros((), device=self.accelerator.device)
        packs = self.pad_packs(packs)
        for number, pack in enumerate(packs, 1):
            last = number == len(packs)
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                loss = loss_of(model, pack)
                # Gradients are averaged over processes, but the losses are weighted to be summed.
                self.accelerator.backward(loss * self.accelerator.num_processes)
            total += loss.detach() * self.accelerator.num_processes
        return total

    def pad_packs(self, packs: Sequence[Pack]) -> list[Pack]:
        """Add empty packs until every process has the same number of them.

        Otherwise a collective operation would wait forever for a process that has finished.
        """
        if self.accelerator.num_processes == 1:
            return list(packs)
        count = torch.tensor([len(packs)], device=self.accelerator.device)
        most = int(self.accelerator.gather(count).max())
        return [*packs, *[Pack.empty(self.accelerator.device)] * (most - len(packs))]

    def add_metrics(self, **metrics: float) -> None:
        """Add metrics of this step; the trainer logs their means.

        Not named `log_metrics`: that is a method of `transformers.Trainer`.
        """
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
