"""Checkpoints that are whole or absent, hold everything a resumed run needs, and hold no pickle.

Mixed into a Hugging Face `Trainer`: weights and optimiser as safetensors, the rest as JSON, random states per process.
`manifest.json` comes last, by rename, with a hash for each file; a folder without one is a leftover of a killed run.
A run that resumes ends with the very bits of one that was never stopped.
    class Mine(WholeCheckpoints, SFTTrainer): ...
    trainer.train(resume_from_checkpoint=trainer.last_checkpoint())
The hook: `extra_progress` for what else of a subclass must survive.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from terrella.core.errors import EngineError
from terrella.engines.trl.checkpoint_files import (
    PREFIX,
    newest_whole,
    pack_optimizer,
    plain_tensors,
    random_file,
    random_states,
    read_json,
    remove_checkpoint,
    restore_random_states,
    unpack_optimizer,
    whole_steps,
    write_json,
    write_manifest,
)

KEPT = 2
"""The newest, and one more in case a disk bites."""
TRAINED, OPTIMIZER, SCHEDULER, PROGRESS = "trained.safetensors", "optimizer", "scheduler.json", "progress.json"
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_FIRST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)


class WholeCheckpoints:
    """Mixin for `transformers.Trainer`; stands before it in the list of bases."""

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

    # --- hooks ---------------------------------------------------------------------------------------------------

    def extra_progress(self) -> dict[str, Any]:
        """JSON values of a subclass that must survive; `restore_progress` gets them back."""
        return {}

    def restore_progress(self, progress: Mapping[str, Any]) -> None:
        """What `extra_progress` said when the checkpoint was written."""

    # --- which -------------------------------------------------------------------------------------------------

    def last_checkpoint(self) -> str | None:
        """The newest whole checkpoint, on every process the same one; leftovers of a killed run are removed."""
        steps = torch.zeros((), dtype=torch.long, device=self.accelerator.device)
        folder = Path(self.args.output_dir)
        if self.accelerator.is_main_process and folder.is_dir():
            steps += newest_whole(folder)
        step = int(self.accelerator.reduce(steps))  # a number, not an object: objects travel as pickles
        return str(folder / f"{PREFIX}{step}") if step else None

    def _run_epoch(self, *, resume_from_checkpoint: str | None, **rest: Any) -> None:
        """As the trainer's; a finished run stays finished, and the figures go on where they stopped."""
        if resume_from_checkpoint is not None and self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True  # the trainer looks only after a step, and would take one more
            return
        super()._run_epoch(resume_from_checkpoint=resume_from_checkpoint, **rest)  # type: ignore[misc]

    # --- writing -----------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Everything in turn; the manifest makes it count, and only then do older ones go."""
        folder = Path(self.args.output_dir) / f"{PREFIX}{self.state.global_step}"
        if self.accelerator.is_main_process and folder.exists():
            remove_checkpoint(folder)
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            write_manifest(folder, self.state.global_step)
            for step in sorted(whole_steps(folder.parent))[:-KEPT]:
                remove_checkpoint(folder.parent / f"{PREFIX}{step}")

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """None: a checkpoint is not published, and a card written at each would only cost time."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The model's weights; sharded ones are gathered first, on all processes."""
        weights = self.accelerator.get_state_dict(self.model) if self.is_fsdp_enabled else None
        if self.args.should_save:
            self._save(output_dir, weights)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """As the trainer's, without the pickled arguments."""
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        model = self.accelerator.unwrap_model(self.model)
        model.save_pretrained(folder, state_dict=state_dict)
        self.processing_class.save_pretrained(folder)
        if not all(weight.requires_grad for weight in model.parameters()):
            # An adapter's own file holds no critic; this one holds whatever the optimiser moves.
            moved = [name for name, weight in model.named_parameters() if weight.requires_grad]
            weights = model.state_dict() if state_dict is None else state_dict
            save_file(plain_tensors({name: weights[name] for name in moved}), folder / TRAINED)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        state = self._optimizer_state()  # on all processes: sharded states are gathered together
        if not self.args.should_save:
            return
        tensors, rest = pack_optimizer(state)
        save_file(tensors, Path(output_dir) / f"{OPTIMIZER}.safetensors")
        write_json(Path(output_dir) / f"{OPTIMIZER}.json", rest)
        write_json(Path(output_dir) / SCHEDULER, self.lr_scheduler.state_dict())
        write_json(Path(output_dir) / PROGRESS, self._progress())

    def _optimizer_state(self) -> dict[str, Any]:
        if self.is_fsdp_enabled:
            return get_optimizer_state_dict(self.model, _bare(self.optimizer), options=FULL)
        return dict(self.optimizer.state_dict())

    def _progress(self) -> dict[str, Any]:
        """Figures since the last log line: a resumed run must not lose the first half of a mean."""
        trainer: Any = self
        figures = {mode: dict(lists) for mode, lists in self._metrics.items()}
        return {
            "loss_sum": trainer._tr_loss.item(), "loss_total": trainer._total_loss_scalar,
            "last_logged": trainer._globalstep_last_logged, "figures": figures, "extra": self.extra_progress(),
        }  # fmt: skip

    def _save_rng_state(self, output_dir: str) -> None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)  # this process may be the first to arrive
        write_json(random_file(output_dir, self.args.process_index), random_states())

    # --- reading -----------------------------------------------------------------------------------------------

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Before the model is wrapped, or after it was sharded: then one process reads and the others are told."""
        trained = Path(resume_from_checkpoint) / TRAINED
        path = trained if trained.exists() else Path(resume_from_checkpoint) / "model.safetensors"
        if self.is_fsdp_enabled:
            weights = load_file(path) if self.accelerator.is_main_process else {}
            set_model_state_dict(model, weights, options=FROM_FIRST)
        elif path.exists():
            (model or self.model).load_state_dict(
                load_file(path), strict=False
            )  # tied and frozen weights are not there
        else:  # too large for one file
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        self._load_optimizer(Path(checkpoint))
        self.lr_scheduler.load_state_dict(read_json(Path(checkpoint) / SCHEDULER))
        self._step = self.state.global_step  # TRL counts its own steps, and would sample at the wrong ones

    def _load_optimizer(self, folder: Path) -> None:
        if self.is_fsdp_enabled and not self.accelerator.is_main_process:
            set_optimizer_state_dict(self.model, _bare(self.optimizer), {}, options=FROM_FIRST)
            return
        tensors = load_file(folder / f"{OPTIMIZER}.safetensors")
        state = unpack_optimizer(tensors, read_json(folder / f"{OPTIMIZER}.json"), self.optimizer.param_groups)
        if self.is_fsdp_enabled:
            set_optimizer_state_dict(self.model, _bare(self.optimizer), state, options=FROM_FIRST)
        else:
            self.optimizer.load_state_dict(state)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Also the figures: this is the trainer's last stop before the first step of a resumed run."""
        if checkpoint is None:
            return
        path = random_file(checkpoint, self.args.process_index)
        if not path.exists():
            what = f"was written by fewer processes: none was number {self.args.process_index}"
            raise EngineError(checkpoint, what, "resume with as many processes as before")
        restore_random_states(read_json(path))
        self._restore_progress(read_json(Path(checkpoint) / PROGRESS))

    def _restore_progress(self, progress: Mapping[str, Any]) -> None:
        trainer: Any = self
        trainer._tr_loss += progress["loss_sum"]
        trainer._total_loss_scalar = progress["loss_total"]
        trainer._globalstep_last_logged = progress["last_logged"]
        for mode, lists in progress["figures"].items():
            for name, values in lists.items():
                self._metrics[mode][name].extend(values)
        self.restore_progress(progress["extra"])


def _bare(optimizer: Any) -> Any:
    """The optimiser itself, without accelerate's wrapper."""
    return optimizer.optimizer
