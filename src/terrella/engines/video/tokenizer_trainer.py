"""Trains a frame tokenizer: pictures through ids and back, until little is lost. Killed, it resumes.

The loss is L1 + squared error + LPIPS (where weights are there and asked for). How many codes are in use is watched:
a tokenizer that falls onto a few codes looks fine in its loss for long. Batches are small: the number of updates, not
of pictures, is what makes objects appear.
    tokenizer = TokenizerTrainer(TokenizerTrainer.Config(steps=2000), films, out=Path("runs/tokenizer")).train(progress)
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from terrella.core.config import Configurable
from terrella.core.errors import EngineError
from terrella.core.instances import TASK_STREAM, stream
from terrella.core.protocols import Progress
from terrella.models.frame_tokenizer import Coded, FrameTokenizer
from terrella.models.lpips import load_lpips

LOOK_EVERY = 100
"""Steps between two looks at the codes in use."""
SQUARE_WEIGHT = 10.0
"""Squared error finds moving objects first, absolute error then sharpens them."""
WARM_UP = 0.05
STATE = "optimiser.safetensors"


class TokenizerTrainer(Configurable):
    """See the module's docstring."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Sizes and optimiser."""

        tokenizer: FrameTokenizer.Config = field(default_factory=FrameTokenizer.Config)
        steps: int = 2500
        batch: int = 6
        learning_rate: float = 3e-3
        lpips: float = 0.0
        """Weight of the perceptual loss; above 0 LPIPS weights must be there."""
        lpips_every: int = 2
        least_codes: int = 4
        """Fewer codes in use than this, between two looks, stop the training: it has collapsed."""
        save_every: int = 500
        bf16: bool = False
        seed: int = 0

    config: Config

    def __init__(self, config: Config, films: Sequence[NDArray[np.uint8]], out: Path) -> None:
        """`films` are (T, H, W, 3); the first frame of each is its context."""
        super().__init__(config)
        self.films, self.out = films, out
        self.tokenizer: FrameTokenizer = config.tokenizer.build()
        self.optimiser = torch.optim.AdamW(self.tokenizer.parameters(), lr=config.learning_rate)
        self.lpips = load_lpips() if config.lpips else None
        self.step = 0
        self.used: dict[str, set[int]] = {"context": set(), "frames": set()}

    def train(self, progress: Progress) -> FrameTokenizer:
        """Until the last step; returns the tokenizer, which also lies in the folder."""
        progress.phase("tokenizer", self.config.steps)
        if not self._resume():
            self.tokenizer.learn_background(self._pictures(self._sample(0, 256))[1])
        self.tokenizer.train()
        while self.step < self.config.steps:
            loss = self._update()
            self.step += 1
            if self.step % LOOK_EVERY == 0:
                progress.advance(self.step, loss=loss, **{f"codes_{k}": len(v) for k, v in self.used.items()})
                self._look()
            if self.config.save_every and self.step % self.config.save_every == 0:
                self._save()
        self.tokenizer.eval().save(self.out)
        return self.tokenizer

    def _sample(self, step: int, count: int) -> list[tuple[int, int]]:
        """Film and frame of each picture of a batch: a pure function of the step, so that a resumed run goes on."""
        rng = stream(TASK_STREAM, self.config.seed, step)
        films = rng.integers(len(self.films), size=count)
        return [(int(film), int(rng.integers(len(self.films[film])))) for film in films]

    def _pictures(self, places: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        context = np.stack([self.films[film][0] for film, _ in places])
        frames = np.stack([self.films[film][place] for film, place in places])
        floats = [torch.tensor(x).permute(0, 3, 1, 2).float() / 255.0 for x in (context, frames)]
        return floats[0], floats[1]

    def _update(self) -> float:
        context, frames = self._pictures(self._sample(self.step + 1, self.config.batch))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.bf16):
            coded = self.tokenizer(context, frames)
        loss = self._loss(coded, context, frames)
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.tokenizer.parameters(), 1.0)
        self.optimiser.step()
        self.used["context"].update(coded.context_ids.flatten().tolist())
        self.used["frames"].update(coded.frame_ids.flatten().tolist())
        return float(loss.detach())

    def _learning_rate(self) -> float:
        """Up over the first twentieth, then down by a cosine: a pure function of the step."""
        done = self.step / self.config.steps
        return self.config.learning_rate * min(1.0, done / WARM_UP + 0.05) * 0.5 * (1.0 + math.cos(math.pi * done))

    def _loss(self, coded: Coded, context: Tensor, frames: Tensor) -> Tensor:
        loss = coded.loss
        for made, real in ((coded.context.float(), context), (coded.frames.float(), frames)):
            loss = loss + functional.l1_loss(made, real) + SQUARE_WEIGHT * functional.mse_loss(made, real)
        if self.lpips is not None and self.step % self.config.lpips_every == 0:
            far = self.lpips(coded.frames.float(), frames).mean() + self.lpips(coded.context.float(), context).mean()
            loss = loss + self.config.lpips * far
        return loss

    def _look(self) -> None:
        for name, used in self.used.items():
            if len(used) < self.config.least_codes:
                what = f"only {len(used)} of {self.tokenizer.codes} codes of the {name} are in use: it has collapsed"
                raise EngineError("tokenizer", what, "train with more steps of warm-up, or a lower learning rate")
            used.clear()

    # --- checkpoints: weights, moments, the step; no pickle -----------------------------------------------------------

    def _save(self) -> None:
        self.tokenizer.save(self.out / "last")
        state = self.optimiser.state_dict()["state"]
        moments = {f"{place}.{name}": value for place, found in state.items() for name, value in found.items()}
        save_file({name: torch.as_tensor(value).contiguous() for name, value in moments.items()},
                  self.out / "last" / STATE, {"step": str(self.step)})  # fmt: skip
        (self.out / "last" / "step.json").write_text(json.dumps({"step": self.step}), "utf-8")

    def _resume(self) -> bool:
        folder = self.out / "last"
        if not (folder / "step.json").exists():
            return False
        self.step = int(json.loads((folder / "step.json").read_text("utf-8"))["step"])
        self.tokenizer.load_state_dict(FrameTokenizer.load(folder).state_dict())
        state: dict[int, dict[str, Any]] = {}
        for name, value in load_file(folder / STATE).items():
            place, _, key = name.partition(".")
            state.setdefault(int(place), {})[key] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        return True
