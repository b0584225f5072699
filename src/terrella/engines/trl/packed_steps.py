"""What both trainers share: one optimiser step over many packs, figures by name, checkpoints and exports.

Mixed into a Hugging Face `Trainer` (TRL's are). A step's packs add up: their losses carry weights that sum over the
batch and over all processes, so that how episodes were packed changes no result.
    class Mine(PackedSteps, SFTTrainer): def training_step(...): return self.train_on(model, packs, self.pack_loss)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from terrella.engines.trl.checkpoint import WholeCheckpoints
from terrella.engines.trl.critic import plain_weights
from terrella.engines.trl.packs import Pack, TrainingRow, pack_episodes
from terrella.models.export import merged_weights, write_folder


def processes() -> int:
    """How many processes train together, before anything is started: what the launcher said."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class PackedSteps(WholeCheckpoints):
    """Mixin for `transformers.Trainer`."""

    accelerator: Any
    model: Any
    processing_class: Any
    _metrics: Any

    @property
    def policy(self) -> Any:
        """The model itself, without what accelerate wrapped around it."""
        return self.accelerator.unwrap_model(self.model)

    def export(self, folder: Path) -> None:
        """A plain Hugging Face folder: adapters merged, sharded weights gathered, no critic. All processes call it."""
        weights = plain_weights(dict(merged_weights(self.policy)))  # gathered: not for the main process alone
        if self.accelerator.is_main_process:
            write_folder(self.policy, weights, self.processing_class, folder)
        self.accelerator.wait_for_everyone()

    @property
    def attention(self) -> str:
        """The model's attention implementation: it decides how packs are read."""
        return str(self.model.config._attn_implementation)

    def packed(self, rows: Sequence[TrainingRow], *, max_tokens: int, share_prefix: bool = True) -> list[Pack]:
        """Rows as packs on this process's device; prompts are shared where that is faster for this model."""
        # Flex attention skips pairs that may not look: there sharing always pays.
        width = None if self.attention == "flex_attention" else self.model.config.hidden_size
        packs = pack_episodes(rows, max_tokens=max_tokens, share_prefix=share_prefix, width=width)
        return [pack.to(self.accelerator.device) for pack in packs]

    def train_on(self, model: Any, packs: Sequence[Pack], loss_of: Callable[[Any, Pack], Tensor]) -> Tensor:
        """Backward over all packs, gradients exchanged once; the mean of what processes return is the batch's loss."""
        total: Tensor = torch.zeros((), device=self.accelerator.device)
        packs = self.as_many_as_others(packs)
        for number, pack in enumerate(packs, 1):
            last = number == len(packs)
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                loss = loss_of(model, pack)
                # Processes average their gradients, but the losses were weighted to be summed.
                self.accelerator.backward(loss * self.accelerator.num_processes)
            total += loss.detach() * self.accelerator.num_processes
        return total

    def as_many_as_others(self, packs: Sequence[Pack]) -> list[Pack]:
        """Every process runs the same number of passes, or collectives would wait for each other for ever."""
        if self.accelerator.num_processes == 1:
            return list(packs)
        count = torch.tensor([len(packs)], device=self.accelerator.device)
        most = int(self.accelerator.gather(count).max())
        return [*packs, *[Pack.empty(self.accelerator.device)] * (most - len(packs))]

    def note(self, **figures: float) -> None:
        """Figures of this step; their mean is logged."""
        for name, value in figures.items():
            self._metrics["train"][name].append(value)
