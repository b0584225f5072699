"""Settings of a frame tokenizer's training. Nothing here imports torch.

TokenizerTrainConfig(tokenizer=FrameTokenizerConfig(size=64), steps=2000, lpips=1.0)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from terrella.core.bounds import check_above_zero, check_least, check_not_negative
from terrella.core.config import Configurable
from terrella.models.configs import FrameTokenizerConfig


@dataclass(frozen=True, kw_only=True)
class TokenizerTrainConfig(Configurable.Config):
    """Training of a frame tokenizer: sizes and optimiser."""

    tokenizer: FrameTokenizerConfig = field(default_factory=FrameTokenizerConfig)
    steps: int = 2500
    batch: int = 6
    """Frames of an update, on all ranks together."""
    learning_rate: float = 3e-3
    lpips: float = 0.0
    """Weight of the perceptual loss; above 0 the LPIPS weights must be installed."""
    lpips_every: int = 2
    """Steps between two uses of the perceptual loss."""
    adversarial: float = 0.0
    """Weight of the loss against a discriminator of patches; 0 trains none."""
    adversarial_after: int = 10_000
    """The step from which on it counts: before it, reconstructions are too easy to tell."""
    discriminator_width: int = 64
    least_codes: int = 4
    """Training stops when fewer codes than this are in use: the tokenizer has collapsed."""
    save_every: int = 500
    bf16: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that nothing can be fitted with."""
        check_not_negative(self)
        check_least(self, steps=1, batch=1, lpips_every=1)
        check_above_zero(self, "learning_rate")
