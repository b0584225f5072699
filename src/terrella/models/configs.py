"""Settings of models. Nothing here imports torch, so a config can be read anywhere.

FrameTokenizerConfig(size=32, stride=8, width=24)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from terrella.core.config import Configurable


@dataclass(frozen=True, kw_only=True)
class FrameTokenizerConfig(Configurable.Config):
    """Sizes of a frame tokenizer; see `models/frame_tokenizer.py`."""

    kind: Literal["compressive", "per_frame"] = "compressive"
    """compressive: frames as what changed since a context frame; per_frame: each by itself."""
    size: int = 64
    """Height in pixels; a multiple of the stride."""
    columns: int = 0
    """Width in pixels; 0 is the height."""
    quantizer: Literal["fsq", "vq"] = "fsq"
    levels: tuple[int, ...] = (8, 5, 5, 5)
    """Their product is the number of codes, both of the context and of later frames."""
    stride: Literal[8, 16, 32] = 16
    """Side in pixels of the patch that one id of a frame describes; small frames need 8."""
    width: int = 32
    local: bool = False
    """Whether an id is computed from its own patch alone, and not from the whole frame.

    Then the ids of patches in which nothing moves stay as they are, and a world model has only the
    others to predict. Frames are a little less sharp.
    """
    seed: int = 0
    """Seed of the weights before training."""

    @property
    def tokens_per_frame(self) -> int:
        """Ids of a frame; of a later one, if there are context frames."""
        return (self.size // self.stride) * ((self.columns or self.size) // self.stride)

    @property
    def tokens_per_context(self) -> int:
        """Ids of a context frame; 0 if every frame is encoded by itself."""
        if self.kind == "per_frame":
            return 0
        return (self.size // 8) * ((self.columns or self.size) // 8)
