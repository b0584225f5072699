"""A key/value cache with one slot per sequence, for rows of different lengths.

Rows that take part in a forward pass occupy the first slots, so that attention reads a view and
nothing is copied. The model calls the two methods it needs of a cache (`update`, `get_seq_length`);
masks and positions are passed to it.
    cache.write_at(columns)
    model(ids, position_ids=columns, attention_mask=cache.mask(), past_key_values=cache)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from terrella.core.errors import ConfigError
from terrella.models.attention_masks import LayerWindows, finished_mask

BLOCK = 64
"""Columns are added in blocks: growing copies the cache, and a token at a time would be slow."""


class SlotCache:
    """Keys and values of all layers, [layer, slot, head, column, dimension]."""

    is_compileable = False

    def __init__(self, config: Any, *, device: torch.device, dtype: torch.dtype) -> None:
        """Starts empty; `reserve` grows it."""
        self.config = config
        self.windows = LayerWindows.of(config)
        heads = getattr(config, "num_key_value_heads", None)
        if heads is None:
            raise ConfigError(
                "model",
                f"the in-process sampler cannot cache keys and values of {config.model_type}",
                "set sampler=vllm, or use another model",
            )
        # Qwen2's config has no head_dim, and Llama's may be None.
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.keys = torch.zeros(
            config.num_hidden_layers, 0, heads, 0, size, device=device, dtype=dtype
        )
        self.values = self.keys.clone()
        self.columns = torch.zeros(0, 0, dtype=torch.long, device=device)
        self.width = 0

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for so many slots, and for columns in blocks of `BLOCK`.

        Blocks and not powers of two: two doubled sizes would reserve up to four times the need.
        """
        layers, have_slots, heads, have_columns, size = self.keys.shape
        if slots <= have_slots and columns <= have_columns:
            return
        slots = max(have_slots, slots)
        columns = max(have_columns, -(-columns // BLOCK) * BLOCK)
        for name in ("keys", "values"):  # one after the other: only one of them exists twice
            old: Tensor = getattr(self, name)
            new = old.new_zeros(layers, slots, heads, columns, size)
            new[:, :have_slots, :, :have_columns] = old
            setattr(self, name, new)

    @property
    def nbytes(self) -> int:
        """Memory that is reserved."""
        return self.keys.nbytes + self.values.nbytes

    def free(self) -> None:
        """Give the memory back; no slot may be in use."""
        layers, _, heads, _, size = self.keys.shape
        self.keys = self.keys.new_zeros(layers, 0, heads, 0, size)
        self.values = self.keys.clone()

    def write_at(self, columns: Tensor) -> None:
        """Make the next pass write token j of row i at `columns[i, j]`; row i is slot i."""
        self.columns = columns
        self.width = int(columns.max()) + 1

    def mask(self) -> Tensor | dict[str, Tensor]:
        """The attention mask of the next pass, by kind of layer if there are two."""
        return self.windows.by_layer(self._mask)

    def _mask(self, window: int | None) -> Tensor:
        """Each token attends to columns up to its own, and to none before its window."""
        own = self.columns[:, None, :, None]
        columns = torch.arange(self.width, device=self.columns.device)
        mask = columns <= own
        if window is not None:
            mask &= columns > own - window
        return finished_mask(mask, self.config._attn_implementation)

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the new columns and return all columns so far. Called by the model's attention."""
        rows = torch.arange(len(self.columns), device=self.columns.device)
        # Under autocast keys arrive in fp32 (rotary embeddings) and values in bf16.
        dtype = self.keys.dtype
        self.keys[layer][rows[:, None], :, self.columns] = keys.transpose(1, 2).to(dtype)
        self.values[layer][rows[:, None], :, self.columns] = values.transpose(1, 2).to(dtype)
        all_keys = self.keys[layer, : len(rows), :, : self.width]
        all_values = self.values[layer, : len(rows), :, : self.width]
        return all_keys, all_values

    def get_seq_length(self, layer: int = 0) -> int:
        """Always 0: positions are passed to the model, so it does not need a common length."""
        return 0

    def copy(self, source: int, target: int, columns: int) -> None:
        """Copy the first columns of one slot to another: a prompt read once serves its group."""
        self.keys[:, target, :, :columns] = self.keys[:, source, :, :columns]
        self.values[:, target, :, :columns] = self.values[:, source, :, :columns]

    def swap(self, first: int, second: int, columns: int) -> None:
        pair = [first, second]
        swapped = [second, first]
        self.keys[:, pair, :, :columns] = self.keys[:, swapped, :, :columns]
        self.values[:, pair, :, :columns] = self.values[:, swapped, :, :columns]
