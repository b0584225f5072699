"""Atomic checkpoints: complete or absent, enough for a bit-exact resume, and free of pickle.

A mixin for a Hugging Face `Trainer`. Weights and optimizer state are safetensors, the rest is JSON,
and each process saves its own random states. Under FSDP2 each process also saves its own shards
(`sharded_state`). `manifest.json` is written last, by rename, with a hash of each file and of
itself; a folder without one was left by a killed run. Only listed files are loaded. A resumed run
ends with exactly the same weights as an uninterrupted one.
    class MyTrainer(AtomicCheckpoints, SFTTrainer): ...
    trainer.train(resume_from_checkpoint=trainer.last_checkpoint())
Subclasses save further state with `extra_progress` and `restore_progress`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from terrella.core.errors import EngineError
from terrella.core.files import read_json
from terrella.engines.checkpoints import (
    PREFIX,
    listed_file,
    listed_names,
    newest_complete,
    remove_checkpoint,
    remove_old,
    write_manifest,
)
from terrella.engines.trl import sharded_state
from terrella.engines.trl.checkpoint_files import (
    load_optimizer,
    plain_tensors,
    random_file,
    random_states,
    restore_random_states,
    save_optimizer,
    write_json,
)
from terrella.models.quiet import without_bars

TRAINED, WHOLE = "trained.safetensors", "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Which file has which weight, of a model that is too large for one file."""
SCHEDULER = "scheduler.json"
PROGRESS = "progress.json"


class AtomicCheckpoints:
    """Mixin for `transformers.Trainer`; list it before the trainer among the bases."""

    args: Any
    accelerator: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any
    processing_class: Any
    state: Any
    control: Any
    is_fsdp_enabled: bool
    _metrics: Any
    _step: int

    # --- hooks ------------------------------------------------------------------------------------

    def extra_progress(self) -> dict[str, Any]:
        """JSON values to save with a checkpoint; `restore_progress` receives them on resume."""
        return {}

    def restore_progress(self, progress: Mapping[str, Any]) -> None:
        """Restore what `extra_progress` returned when the checkpoint was written."""

    # --- choosing ---------------------------------------------------------------------------------

    def last_checkpoint(self) -> str | None:
        """The newest complete checkpoint, the same on every process.

        Incomplete ones, left by a killed run, are removed.
        """
        # A number and not an object is exchanged: objects travel as pickles.
        steps = torch.zeros((), dtype=torch.long, device=self.accelerator.device)
        folder = Path(self.args.output_dir)
        if self.accelerator.is_main_process and folder.is_dir():
            steps += newest_complete(folder)
        step = int(self.accelerator.reduce(steps))
        return str(folder / f"{PREFIX}{step}") if step else None

    def _run_epoch(self, *, resume_from_checkpoint: str | None, **rest: Any) -> None:
        """The trainer's epoch, except that a finished run takes no further step."""
        if resume_from_checkpoint is not None and self.state.global_step >= self.state.max_steps:
            # The trainer checks only after a step, and would take one more.
            self.control.should_training_stop = True
            return
        super()._run_epoch(resume_from_checkpoint=resume_from_checkpoint, **rest)  # type: ignore[misc]

    # --- writing ----------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write all files, then the manifest that makes them count, then remove old checkpoints."""
        folder = Path(self.args.output_dir) / f"{PREFIX}{self.state.global_step}"
        if self.accelerator.is_main_process and folder.exists():
            remove_checkpoint(folder)
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            write_manifest(folder, self.state.global_step)
            remove_old(folder.parent)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Do nothing: checkpoints are not published, so a model card would only cost time."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model's weights; sharded ones are saved with the optimizer's state."""
        if self.args.should_save and not self.is_fsdp_enabled:
            self._save(output_dir)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None
    ) -> None:
        """Save model and tokenizer like the trainer, without its pickled arguments."""
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        model = self.accelerator.unwrap_model(self.model)
        with without_bars():
            model.save_pretrained(folder, state_dict=state_dict)
        self.processing_class.save_pretrained(folder)
        if not all(weight.requires_grad for weight in model.parameters()):
            # PEFT's adapter file leaves out the critic; this file holds all trained parameters.
            trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
            weights = model.state_dict() if state_dict is None else state_dict
            save_file(plain_tensors({name: weights[name] for name in trained}), folder / TRAINED)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        folder = Path(output_dir)
        if self.is_fsdp_enabled:
            sharded_state.save_shards(folder, self.args.process_index, self.model, self.optimizer)
        if not self.args.should_save:
            return
        if not self.is_fsdp_enabled:
            save_optimizer(folder, self.optimizer)
        write_json(folder / SCHEDULER, self.lr_scheduler.state_dict())
        write_json(folder / PROGRESS, self._progress())

    def _progress(self) -> dict[str, Any]:
        """Losses and metrics since the last log line, so that a resumed run logs the same means."""
        trainer: Any = self
        metrics = {mode: dict(lists) for mode, lists in self._metrics.items()}
        return {
            "loss_sum": trainer._tr_loss.item(),
            "loss_total": trainer._total_loss_scalar,
            "last_logged": trainer._globalstep_last_logged,
            "metrics": metrics,
            "extra": self.extra_progress(),
        }

    def _save_rng_state(self, output_dir: str) -> None:
        # This process may be the first to get here.
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        path = Path(output_dir) / random_file(self.args.process_index)
        write_json(path, random_states())

    # --- reading ----------------------------------------------------------------------------------

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the weights. Called before the model is wrapped, or after it was sharded."""
        folder = Path(resume_from_checkpoint)
        if self.is_fsdp_enabled:
            process, processes = self.args.process_index, self.accelerator.num_processes
            sharded_state.load_weights(folder, process, processes, model)
            return
        for path in _weight_files(folder):
            # Not strict: tied and frozen weights are not in the files.
            (model or self.model).load_state_dict(load_file(path), strict=False)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        if self.is_fsdp_enabled:
            sharded_state.load_optimizer(Path(checkpoint), self.args.process_index, self.optimizer)
        else:
            load_optimizer(Path(checkpoint), self.optimizer)
        self.lr_scheduler.load_state_dict(read_json(listed_file(Path(checkpoint), SCHEDULER)))
        # TRL counts steps itself, and would otherwise sample at the wrong ones.
        self._step = self.state.global_step

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore random states and metrics: this is the last call before a resumed step."""
        if checkpoint is None:
            return
        name = random_file(self.args.process_index)
        if name not in listed_names(Path(checkpoint)):
            message = f"was written by fewer processes: it has no rank {self.args.process_index}"
            raise EngineError(checkpoint, message, "resume with as many processes as before")
        restore_random_states(read_json(Path(checkpoint) / name))
        self._restore_progress(read_json(listed_file(Path(checkpoint), PROGRESS)))

    def _restore_progress(self, progress: Mapping[str, Any]) -> None:
        trainer: Any = self
        trainer._tr_loss += progress["loss_sum"]
        trainer._total_loss_scalar = progress["loss_total"]
        trainer._globalstep_last_logged = progress["last_logged"]
        for mode, lists in progress["metrics"].items():
            for name, values in lists.items():
                self._metrics[mode][name].extend(values)
        self.restore_progress(progress["extra"])


def _weight_files(folder: Path) -> list[Path]:
    """The files with the trained weights, among those that the manifest lists."""
    listed = listed_names(folder)
    for name in (TRAINED, WHOLE):
        if name in listed:
            return [folder / name]
    shards = set(read_json(listed_file(folder, INDEX))["weight_map"].values())
    return [listed_file(folder, name) for name in sorted(shards)]
