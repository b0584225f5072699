"""Train a frame tokenizer to reconstruct frames from their ids; the same call resumes.

The loss is L1 + squared error + LPIPS (if configured, and if its weights are installed). The number
of codes in use is monitored, because a tokenizer that has collapsed onto a few codes keeps a good
loss for a long time. Batches are small: how soon objects appear depends on the number of updates,
not of frames.
    config = TokenizerTrainConfig(steps=2000)
    tokenizer = TokenizerTrainer(config, videos, Path("runs/x"), seed=0).train(progress)
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from terrella.core.errors import EngineError
from terrella.core.protocols import Progress
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.untrusted import read_json
from terrella.engines.configs import TokenizerTrainConfig
from terrella.models.device import default_device
from terrella.models.frame_tokenizer import FrameTokenizer, Reconstruction
from terrella.models.lpips import load_lpips

CHECK_EVERY = 100
"""Steps between two checks of the codes in use."""
SQUARE_WEIGHT = 10.0
"""Squared error makes moving objects appear first; absolute error then sharpens them."""
WARM_UP = 0.05
BACKGROUND_FRAMES = 256
STATE = "optimiser.safetensors"


class TokenizerTrainer:
    """Trains on videos (T, H, W, 3); the first frame of each is its context."""

    def __init__(
        self,
        config: TokenizerTrainConfig,
        videos: Sequence[NDArray[np.uint8]],
        out: Path,
        *,
        seed: int,
    ) -> None:
        self.config = config
        self.videos = videos
        self.out = out
        self.seed = seed
        self.device = default_device()
        self.tokenizer = FrameTokenizer(config.tokenizer).to(self.device)
        self.optimiser = torch.optim.AdamW(self.tokenizer.parameters(), lr=config.learning_rate)
        self.lpips = load_lpips().to(self.device) if config.lpips else None
        self.step = 0
        self.used: dict[str, set[int]] = {"context": set(), "frames": set()}

    def train(self, progress: Progress) -> FrameTokenizer:
        """Train to the last step, and save the tokenizer to the folder."""
        progress.phase("tokenizer", self.config.steps)
        if not self._resume():
            self.tokenizer.learn_background(self._batch(self._sample(0, BACKGROUND_FRAMES))[1])
        self.tokenizer.train()
        while self.step < self.config.steps:
            loss = self._update()
            self.step += 1
            if self.step % CHECK_EVERY == 0:
                codes = {f"codes_{name}": len(used) for name, used in self.used.items()}
                progress.advance(self.step, loss=loss, **codes)
                self._check_codes()
            if self.config.save_every and self.step % self.config.save_every == 0:
                self._save()
        self.tokenizer.eval().save(self.out)
        return self.tokenizer.cpu()  # frames are encoded on the host, one video at a time

    def _sample(self, step: int, count: int) -> list[tuple[int, int]]:
        """Video and frame of each item of a batch: a pure function of the step, for resuming."""
        rng = stream(TASK_STREAM, self.seed, step)
        videos = rng.integers(len(self.videos), size=count)
        return [(int(video), int(rng.integers(len(self.videos[video])))) for video in videos]

    def _batch(self, items: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Context frames and frames, as floats in [0, 1], (N, 3, H, W)."""
        context = np.stack([self.videos[video][0] for video, _ in items])
        frames = np.stack([self.videos[video][index] for video, index in items])
        return _floats(context).to(self.device), _floats(frames).to(self.device)

    def _update(self) -> float:
        context, frames = self._batch(self._sample(self.step + 1, self.config.batch))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.bf16):
            rebuilt = self.tokenizer(context, frames)
        loss = self._loss(rebuilt, context, frames)
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.tokenizer.parameters(), 1.0)
        self.optimiser.step()
        self.used["context"].update(rebuilt.context_ids.flatten().tolist())
        self.used["frames"].update(rebuilt.frame_ids.flatten().tolist())
        return float(loss.detach())

    def _learning_rate(self) -> float:
        """Linear warm-up over the first 5% of the steps, then a cosine to zero."""
        done = self.step / self.config.steps
        warm_up = min(1.0, done / WARM_UP + 0.05)
        return self.config.learning_rate * warm_up * 0.5 * (1.0 + math.cos(math.pi * done))

    def _loss(self, rebuilt: Reconstruction, context: Tensor, frames: Tensor) -> Tensor:
        loss = rebuilt.loss
        pairs = ((rebuilt.context.float(), context), (rebuilt.frames.float(), frames))
        for output, target in pairs:
            absolute = functional.l1_loss(output, target)
            loss = loss + absolute + SQUARE_WEIGHT * functional.mse_loss(output, target)
        if self.lpips is not None and self.step % self.config.lpips_every == 0:
            perceptual = (
                self.lpips(rebuilt.frames.float(), frames).mean()
                + self.lpips(rebuilt.context.float(), context).mean()
            )
            loss = loss + self.config.lpips * perceptual
        return loss

    def _check_codes(self) -> None:
        for name, used in self.used.items():
            if len(used) < self.config.least_codes:
                raise EngineError(
                    "tokenizer",
                    f"has collapsed: only {len(used)} of {self.tokenizer.codes} codes "
                    f"of the {name} are in use",
                    "train with more steps of warm-up, or a lower learning rate",
                )
            used.clear()

    # --- checkpoints: weights, optimizer moments, the step; no pickle -----------------------------

    def _save(self) -> None:
        folder = self.out / "last"
        self.tokenizer.save(folder)
        moments = {
            f"{index}.{name}": torch.as_tensor(value).contiguous()
            for index, state in self.optimiser.state_dict()["state"].items()
            for name, value in state.items()
        }
        save_file(moments, folder / STATE, {"step": str(self.step)})
        (folder / "step.json").write_text(json.dumps({"step": self.step}), "utf-8")

    def _resume(self) -> bool:
        folder = self.out / "last"
        if not (folder / "step.json").exists():
            return False
        self.step = int(read_json(folder / "step.json")["step"])
        self.tokenizer.load_state_dict(FrameTokenizer.load(folder).state_dict())
        state: dict[int, dict[str, Any]] = {}
        for name, value in load_file(folder / STATE).items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        return True


def _floats(frames: NDArray[np.uint8]) -> Tensor:
    return torch.tensor(frames).permute(0, 3, 1, 2).float() / 255.0
