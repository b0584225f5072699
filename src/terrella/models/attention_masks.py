"""Which layers of a model attend to a window of recent tokens only, and the masks of its layers.

Transformers uses a finished mask as it is, so ours hold the windows, in the form that the model's
attention takes.
    windows = LayerWindows.of(model.config)
    model(ids, attention_mask=windows.by_layer(make_mask))  # make_mask(window), None for no window
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from terrella.core.errors import ConfigError

FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers, as transformers names them in `layer_types`."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LayerWindows:
    """The window of a model's layers: a token attends to itself and to the `size - 1` before."""

    kinds: frozenset[str] = frozenset({FULL})
    """The kinds of layers that the model has."""
    size: int = 0
    """Window of the sliding layers; 0 if there are none."""

    @classmethod
    def of(cls, config: Any) -> LayerWindows:
        """Read a config of transformers; layers of any other kind are refused by name."""
        window = getattr(config, "sliding_window", None)
        # Without kinds, a window is that of all layers: Mistral and Phi-3.
        kinds = frozenset(getattr(config, "layer_types", None) or ({SLIDING if window else FULL}))
        unknown = sorted(kinds - {FULL, SLIDING})
        if unknown:
            raise ConfigError(
                "model",
                f"layers of {config.model_type} compute {', '.join(unknown)}; packs and the "
                "in-process sampler know full and sliding attention",
                "use engine=verl, and sampler=vllm to evaluate, or another model",
            )
        return cls(kinds, int(config.sliding_window) if SLIDING in kinds else 0)

    def by_layer(self, make: Callable[[int | None], T]) -> T | dict[str, T]:
        """What `make` returns for a window: by kind of layer, or itself if there is one kind."""
        made = {kind: make(self.size if kind == SLIDING else None) for kind in sorted(self.kinds)}
        return made if len(made) > 1 else next(iter(made.values()))


def finished_mask(mask: Tensor, implementation: str) -> Tensor:
    """A mask of bool (True: attends) as this implementation of attention takes it.

    Eager attention adds its mask to the scores. Of a mask of bool it would add 1 or 0, and mask
    nothing.
    """
    if implementation != "eager":
        return mask
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, lowest)
