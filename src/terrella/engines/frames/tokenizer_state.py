"""Checkpoints of a tokenizer in training: weights, moments, discriminator, step; no pickle.

Rank 0 writes, all ranks read. `resume` returns the step to go on from, 0 for a new run.
    save(trainer)
    trainer.step = resume(trainer)
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from terrella.core.run_folder import rank
from terrella.engines.checkpoints import (
    PREFIX,
    listed_file,
    newest_complete,
    remove_old,
    write_manifest,
)
from terrella.engines.ranks import barrier, of_rank_0
from terrella.models.tokenizer_base import WEIGHTS

if TYPE_CHECKING:
    from terrella.engines.frames.tokenizer_trainer import TokenizerTrainer

MOMENTS = "optimiser.safetensors"
DISCRIMINATOR, DISCRIMINATOR_MOMENTS = "discriminator.safetensors", "discriminator_moments.st"


def save(trainer: TokenizerTrainer) -> None:
    """Write a checkpoint that is complete or absent. All ranks call it."""
    if rank() == 0:
        folder = trainer.work / f"{PREFIX}{trainer.step}"
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed run
        folder.mkdir(parents=True)
        trainer.tokenizer.write_files(folder)
        _write_moments(folder / MOMENTS, trainer.optimiser)
        if trainer.discriminator is not None and trainer.discriminator_optimiser is not None:
            save_file(trainer.discriminator.state_dict(), folder / DISCRIMINATOR)
            _write_moments(folder / DISCRIMINATOR_MOMENTS, trainer.discriminator_optimiser)
        write_manifest(folder, trainer.step)
        remove_old(trainer.work)
    barrier()


def resume(trainer: TokenizerTrainer) -> int:
    """Load the newest intact checkpoint into the trainer."""
    found = newest_complete(trainer.work) if rank() == 0 else 0
    step = of_rank_0(found)
    if not step:
        return 0
    folder = trainer.work / f"{PREFIX}{step}"
    trainer.tokenizer.load_weights(listed_file(folder, WEIGHTS))
    _read_moments(listed_file(folder, MOMENTS), trainer.optimiser)
    if trainer.discriminator is not None and trainer.discriminator_optimiser is not None:
        trainer.discriminator.load_state_dict(load_file(listed_file(folder, DISCRIMINATOR)))
        moments = listed_file(folder, DISCRIMINATOR_MOMENTS)
        _read_moments(moments, trainer.discriminator_optimiser)
    return step


def _write_moments(path: Path, optimiser: torch.optim.Optimizer) -> None:
    moments = {
        f"{index}.{name}": torch.as_tensor(value).contiguous()
        for index, state in optimiser.state_dict()["state"].items()
        for name, value in state.items()
    }
    save_file(moments, path)


def _read_moments(path: Path, optimiser: torch.optim.Optimizer) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in load_file(path).items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
