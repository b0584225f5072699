"""Follows a training step of a frame tokenizer on fake tensors.

need = tokenizer_bytes(TokenizerTrainConfig())
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

from terrella.engines.frames.configs import TokenizerTrainConfig
from terrella.engines.memory.live_bytes import LiveBytes, fake_tensors
from terrella.engines.memory.steps import TrainBytes
from terrella.models.frame_tokenizers import make_frame_tokenizer

LPIPS_BYTES = 1_200
"""Per pixel of a batch, for LPIPS on frames and contexts: AlexNet's maps in fp32.

Five convolutions hold about eleven numbers per pixel. With rectified, normalised and squared
copies, the scaled images and both members of a pair it is about 150, for two pairs. Computed, not
followed: the weights may not be installed.
"""


DISCRIMINATOR_BYTES = 40
"""Per pixel of a batch and channel of the discriminator's first map, in fp32.

The first map has a quarter of the pixels, the next two an eighth and a sixteenth of the numbers:
together 0.44, with rectified and normalised copies about 1.2. Frames and contexts, real and
rebuilt, and the pass for the tokenizer's own loss make six such stacks of 4 bytes; rounded up.
"""


@functools.lru_cache(maxsize=64)
def tokenizer_bytes(config: TokenizerTrainConfig, processes: int = 1) -> TrainBytes:
    """One rank's batch: encode, decode, loss, backward."""
    batch = max(1, config.batch // processes)
    rows, columns = config.tokenizer.size, config.tokenizer.columns or config.tokenizer.size
    with fake_tensors():
        model = make_frame_tokenizer(config.tokenizer).train()
        live = LiveBytes()
        with live:
            live.follow(model)
            frames = torch.empty(batch, 3, rows, columns)
            with torch.autocast("cpu", torch.bfloat16, enabled=config.bf16):
                rebuilt = model(frames, frames)
            loss = rebuilt.loss + functional.mse_loss(rebuilt.frames.float(), frames)
            if rebuilt.context is not None:
                loss = loss + functional.mse_loss(rebuilt.context.float(), frames)
            loss.backward()
        weights = float(sum(each.numel() * each.element_size() for each in model.parameters()))
    pixels = rows * columns * batch
    losses = LPIPS_BYTES if config.lpips else 0
    if config.adversarial:
        losses += DISCRIMINATOR_BYTES * config.discriminator_width
    return TrainBytes(
        weights=weights,
        trained=weights,
        casts=float(live.peak["casts"]),
        activations=live.peak["activations"] + float(losses * pixels),
        logits=0.0,
        block=0.0,
        outside=weights,
        pack=0.0,
    )
