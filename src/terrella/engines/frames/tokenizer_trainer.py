"""Train a frame tokenizer to reconstruct frames from their ids; the same call resumes.

The loss is L1 + squared error + LPIPS (if configured, and if its weights are installed) + the loss
against a discriminator (if configured, from a late step on). Frames stream from shards, on one rank
or many. The codes in use are monitored, because a tokenizer that has collapsed onto a few codes
keeps a good loss for a long time. Batches are small: how soon objects appear depends on the number
of updates, not of frames.
    config = TokenizerTrainConfig(steps=2000)
    tokenizer = TokenizerTrainer(config, shards, Path("runs/x"), seed=0).train(progress)
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from terrella.core.errors import ConfigError, EngineError
from terrella.core.protocols import Progress
from terrella.core.run_folder import processes, rank
from terrella.core.types import Frames
from terrella.data.shard_draws import ShardDraws
from terrella.data.shards import Shards
from terrella.engines.frames.code_usage import CodeUsage
from terrella.engines.frames.configs import TokenizerTrainConfig
from terrella.engines.frames.discriminator import (
    PatchDiscriminator,
    discriminator_loss,
    generator_loss,
)
from terrella.engines.frames.tokenizer_state import TokenizerState
from terrella.engines.ranks import averaged, barrier
from terrella.models.device import default_device
from terrella.models.frame_tokenizers import AnyTokenizer, Reconstruction, make_frame_tokenizer
from terrella.models.lpips import load_lpips

CHECK_EVERY = 100
"""Steps between two checks of the codes in use."""
SQUARE_WEIGHT = 10.0
"""Squared error makes moving objects appear first; absolute error then sharpens them."""
WARM_UP = 0.05
BACKGROUND_FRAMES, BACKGROUND_PIXELS = 256, 2**22
"""Frames that the background is the median of, at most, and their pixels together."""


class TokenizerTrainer:
    """Trains on the episodes of shards; the first frame of each is its context.

    All ranks of a launched run make one and call `train` together.
    """

    def __init__(
        self, config: TokenizerTrainConfig, shards: Shards, out: Path, *, seed: int
    ) -> None:
        if config.batch % processes():
            what = f"{config.batch} frames do not divide among {processes()} ranks"
            raise ConfigError("trainer.batch", what, "choose a multiple")
        self.config = config
        self.out = out
        self.work = out.with_name(f"{out.name}-train")
        """The folder of the checkpoints."""
        self.device = default_device()
        self.own_batch = config.batch // processes()
        self.draws = ShardDraws(
            shards,
            least=0,
            count=config.steps * config.batch,
            seed=seed,
            lanes=processes(),
            batch=self.own_batch,
        )
        self.tokenizer: AnyTokenizer = make_frame_tokenizer(config.tokenizer).to(self.device)
        self.optimiser = torch.optim.AdamW(self.tokenizer.parameters(), lr=config.learning_rate)
        self.lpips = load_lpips() if config.lpips else None
        self.adversary: tuple[PatchDiscriminator, torch.optim.Optimizer] | None = None
        if config.adversarial:
            net = PatchDiscriminator(config.discriminator_width, seed).to(self.device)
            moments = (0.5, 0.9)
            optimiser = torch.optim.AdamW(net.parameters(), config.learning_rate, moments)
            self.adversary = net, optimiser
        self.state = TokenizerState(self.tokenizer, self.optimiser, self.adversary)
        self.step = 0
        self.usage = CodeUsage(self.tokenizer.codes)

    def train(self, progress: Progress) -> AnyTokenizer:
        """Train to the last step, and save the tokenizer to the folder."""
        progress.phase("tokenizer", self.config.steps)
        self.step = self.state.resume(self.work)
        if not self.step:
            size = math.prod(self.tokenizer.background.shape[1:])
            turns = range(max(1, min(BACKGROUND_FRAMES, BACKGROUND_PIXELS // size)))
            self.tokenizer.learn_background(self._batch(turns)[1])
        self._distribute()
        self.wrapped.train()
        while self.step < self.config.steps:
            metrics = self._update()
            self.step += 1
            if self.step % CHECK_EVERY == 0:
                usage = self.usage.take()
                progress.advance(self.step, **metrics, **usage.metrics())
                self._check_codes(usage.used)
            if self.config.save_every and self.step % self.config.save_every == 0:
                self._save()
        if rank() == 0:
            self.tokenizer.eval().save(self.out)
        barrier()
        return self.tokenizer.eval()

    def _save(self) -> None:
        self.state.save(self.work, self.step)

    def _distribute(self) -> None:
        """From now on gradients are averaged over the ranks."""
        self.wrapped = averaged(self.tokenizer)
        if self.adversary is not None:
            self.wrapped_discriminator = averaged(self.adversary[0])

    def _batch(self, turns: range) -> tuple[Tensor, Tensor]:
        """Context frames and frames of this rank's draws, as floats in [0, 1], (N, 3, H, W)."""
        contexts, frames = [], []
        for turn in turns:
            round_, within = divmod(turn, self.own_batch)
            index = round_ * self.config.batch + rank() * self.own_batch + within
            episode, place = self.draws[index]
            frame = episode.transitions[place - 1].next_observation if place else episode.first
            assert isinstance(episode.first, Frames) and isinstance(frame, Frames)
            contexts.append(episode.first.array[-1])
            frames.append(frame.array[-1])
        return self._floats(np.stack(contexts)), self._floats(np.stack(frames))

    def _floats(self, frames: NDArray[np.uint8]) -> Tensor:
        return torch.tensor(frames).to(self.device).permute(0, 3, 1, 2).float() / 255.0

    def _update(self) -> dict[str, float]:
        first = self.step * self.own_batch
        context, frames = self._batch(range(first, first + self.own_batch))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.bf16):
            rebuilt = self.wrapped(context, frames)
        pairs = [(rebuilt.frames.float(), frames)]
        if rebuilt.context is not None:
            pairs.append((rebuilt.context.float(), context))
        loss = self._loss(rebuilt, pairs)
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.tokenizer.parameters(), 1.0)
        self.optimiser.step()
        metrics = {"loss": float(loss.detach())}
        if self._is_adversarial():
            metrics["discriminator"] = self._update_discriminator(pairs)
        self.usage.add("frames", rebuilt.frame_ids)
        if rebuilt.context_ids is not None:
            self.usage.add("context", rebuilt.context_ids)
        return metrics

    def _learning_rate(self) -> float:
        """Linear warm-up over the first 5% of the steps, then a cosine to zero."""
        done = self.step / self.config.steps
        warm_up = min(1.0, done / WARM_UP + 0.05)
        return self.config.learning_rate * warm_up * 0.5 * (1.0 + math.cos(math.pi * done))

    def _loss(self, rebuilt: Reconstruction, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        loss = rebuilt.loss
        for output, target in pairs:
            absolute = functional.l1_loss(output, target)
            loss = loss + absolute + SQUARE_WEIGHT * functional.mse_loss(output, target)
        if self.lpips is not None and self.step % self.config.lpips_every == 0:
            for output, target in pairs:
                loss = loss + self.config.lpips * self.lpips(output, target).mean()
        if self.adversary is not None and self._is_adversarial():
            for output, _ in pairs:
                fooled = generator_loss(self.adversary[0], output)
                loss = loss + self.config.adversarial * fooled
        return loss

    def _is_adversarial(self) -> bool:
        return self.adversary is not None and self.step >= self.config.adversarial_after

    def _update_discriminator(self, pairs: list[tuple[Tensor, Tensor]]) -> float:
        real = torch.cat([target for _, target in pairs])
        rebuilt = torch.cat([output.detach() for output, _ in pairs])
        scores = self.wrapped_discriminator(torch.cat([real, rebuilt]))
        loss = discriminator_loss(scores[: len(real)], scores[len(real) :])
        assert self.adversary is not None
        _, optimiser = self.adversary
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return float(loss.detach())

    def _check_codes(self, used: dict[str, int]) -> None:
        for name, count in used.items():
            if count < self.config.least_codes:
                raise EngineError(
                    "tokenizer",
                    f"has collapsed: only {count} of {self.tokenizer.codes} codes "
                    f"of the {name} are in use",
                    "train with more steps of warm-up, or a lower learning rate",
                )
