"""What both TRL trainers share: optimizer steps over packs, metrics, checkpoints, exports.

A mixin for a Hugging Face `Trainer` (TRL's are); the passes themselves are in `pack_passes`.
    class MyTrainer(PackedSteps, SFTTrainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            return self.train_on(model, self.packed(examples, max_tokens=2048), self.pack_loss)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from terrella.core.tokens import TrainExample
from terrella.engines.trl import pack_passes
from terrella.engines.trl.arguments import keep_full_precision
from terrella.engines.trl.checkpoint import AtomicCheckpoints
from terrella.engines.trl.packs import Pack
from terrella.engines.trl.tree_attention import Attention, attention_of


class PackedSteps(AtomicCheckpoints):
    """Mixin for `transformers.Trainer`."""

    accelerator: Any
    model: Any
    processing_class: Any
    _metrics: Any

    def create_accelerator_and_postprocess(self) -> None:
        """The trainer's accelerator, which adds gradients and gives out values in fp32."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        keep_full_precision(self.accelerator)

    @property
    def policy(self) -> Any:
        """The model without accelerate's wrappers."""
        return self.accelerator.unwrap_model(self.model)

    def export(self, folder: Path) -> None:
        """Write a plain Hugging Face folder: adapters merged, weights gathered, no critic.

        All processes call it.
        """
        pack_passes.export_policy(self.accelerator, self.policy, self.processing_class, folder)

    @property
    def attention(self) -> Attention:
        return attention_of(self.model)

    def packed(
        self, examples: Sequence[TrainExample], *, max_tokens: int, share_prefix: bool = True
    ) -> list[Pack]:
        """Examples as packs on this process's device."""
        return pack_passes.packed(
            self.model,
            examples,
            self.accelerator.device,
            max_tokens=max_tokens,
            share_prefix=share_prefix,
        )

    def train_on(
        self, model: Any, packs: Sequence[Pack], loss_of: Callable[[Any, Pack], Tensor]
    ) -> Tensor:
        """Run backward over all packs; the mean over all processes is the loss of the batch."""
        return pack_passes.backward_over(self.accelerator, model, packs, loss_of)

    def pad_packs(self, packs: Sequence[Pack]) -> list[Pack]:
        """Add empty packs until every process has the same number of them."""
        return pack_passes.pad_packs(self.accelerator, packs)

    def add_metrics(self, **metrics: float) -> None:
        """Add metrics of this step; the trainer logs their means.

        Not named `log_metrics`: that is a method of `transformers.Trainer`.
        """
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
