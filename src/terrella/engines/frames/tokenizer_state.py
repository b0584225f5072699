"""Checkpoints of a tokenizer in training: weights, moments, discriminator, step; no pickle.

Rank 0 writes, all ranks read. `resume` returns the step to go on from, 0 for a new run.
    state = TokenizerState(tokenizer, optimiser)
    state.save(folder, step=500)
    step = state.resume(folder)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from terrella.core.files import remove_folder
from terrella.core.run_folder import rank
from terrella.engines.checkpoints import (
    PREFIX,
    listed_file,
    newest_complete,
    remove_old,
    write_manifest,
)
from terrella.engines.frames.discriminator import PatchDiscriminator
from terrella.engines.ranks import barrier, of_rank_0
from terrella.models.tokenizer_base import WEIGHTS, BaseTokenizer

MOMENTS = "optimiser.safetensors"
DISCRIMINATOR, DISCRIMINATOR_MOMENTS = (
    "discriminator.safetensors",
    "discriminator_optimiser.safetensors",
)


@dataclass
class TokenizerState:
    """What a resumed run needs."""

    tokenizer: BaseTokenizer
    optimiser: torch.optim.Optimizer
    adversary: tuple[PatchDiscriminator, torch.optim.Optimizer] | None = None
    """The discriminator and its optimiser, if there is one."""

    def save(self, work: Path, step: int) -> None:
        """Write a checkpoint that is complete or absent. All ranks call it."""
        if rank() == 0:
            folder = work / f"{PREFIX}{step}"
            remove_folder(folder)  # left by a killed run
            folder.mkdir(parents=True)
            self.tokenizer.write_files(folder)
            _write_moments(folder / MOMENTS, self.optimiser)
            if self.adversary is not None:
                save_file(self.adversary[0].state_dict(), folder / DISCRIMINATOR)
                _write_moments(folder / DISCRIMINATOR_MOMENTS, self.adversary[1])
            write_manifest(folder, step)
            remove_old(work)
        barrier()

    def resume(self, work: Path) -> int:
        """Load the newest intact checkpoint."""
        step = of_rank_0(newest_complete(work) if rank() == 0 else 0)
        if not step:
            return 0
        folder = work / f"{PREFIX}{step}"
        self.tokenizer.load_weights(listed_file(folder, WEIGHTS))
        _read_moments(listed_file(folder, MOMENTS), self.optimiser)
        if self.adversary is not None:
            self.adversary[0].load_state_dict(load_file(listed_file(folder, DISCRIMINATOR)))
            _read_moments(listed_file(folder, DISCRIMINATOR_MOMENTS), self.adversary[1])
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
