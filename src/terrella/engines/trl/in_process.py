"""The in-process sampler of a trainer: on the model that it trains, or on a copy beside it.

sampler = in_process_sampler(trainer, None)
"""

from __future__ import annotations

from typing import Any

import torch

from terrella.engines.local.local_sampler import CopySampler, LocalSampler


def in_process_sampler(trainer: Any, copied: Any) -> LocalSampler:
    """A sampler on the trained model itself, or on `copied`, which receives its weights."""
    bf16, device = trainer.rlvr.bf16, trainer.accelerator.device
    settings = {
        "beat": trainer.watchdog.beat,
        "device": device,
        "dtype": torch.bfloat16 if bf16 else None,
    }
    if copied is None:
        return LocalSampler(trainer.policy, **settings)
    copied = copied.to(device).eval()
    if bf16:  # accelerate does so with the trained model, not with its copies
        copied.forward = torch.autocast(device.type, dtype=torch.bfloat16)(copied.forward)
    if trainer.attention.implementation == "flex_attention":  # as in `sampling_mode`
        copied.set_attn_implementation("sdpa")
    return CopySampler(copied, **settings)
