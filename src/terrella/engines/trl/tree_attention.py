"""Attention within packs: a token attends causally to its own segment and to its prompt.

Layers with a sliding window attend to the part of these within the window, by position.

Groups of a pack do not attend to each other, so attention is computed group by group (neighbours of
equal length together). One mask over the whole pack would spend most of its time on masked pairs.
Flex attention (GPUs) takes the same rule as a function and skips empty blocks. The model's
attention implementation decides which of them is used.
    use_attention(model, "auto")
    model(..., **pack.attention(attention_of(model)))
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from terrella.core.errors import ConfigError
from terrella.models.attention_masks import LayerWindows, finished_mask
from terrella.models.grouped_attention import GROUPED, grouped_attention

TREE = "terrella_tree"
Run = tuple[int, int, Tensor]
"""Neighbouring groups of equal length: their count, their length n, and their mask.

The mask is a bool tensor [count, 1, n, n].
"""
MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether a token may attend to another: (batch, head, query, key), as flex attention asks it."""
Tree = Sequence[Run] | Mapping[str, Sequence[Run]]
"""The runs of a pack; by kind of layer, if a model has layers of two kinds."""


@dataclass(frozen=True, slots=True)
class Attention:
    """How a model computes attention."""

    implementation: str
    """Its name in transformers."""
    windows: LayerWindows


def attention_of(model: Any) -> Attention:
    """The model's attention, which decides how packs are masked."""
    config = model.config
    return Attention(str(config._attn_implementation), LayerWindows.of(config))


def use_attention(model: Any, wanted: str) -> None:
    """Make a model compute packs with this implementation; "auto" keeps the model's own.

    With sdpa, packs are computed group by group; other inputs (generation) use grouped attention.
    """
    own = model.config._attn_implementation
    chosen = own if wanted == "auto" else wanted
    if chosen == GROUPED:  # the model was sampled from before
        chosen = "sdpa"
    if chosen not in (TREE, "sdpa", "flex_attention", "eager"):
        raise ConfigError(
            "attention",
            f"{chosen} takes no mask, and a pack needs one: prompts are shared by completions",
            "use sdpa or flex_attention, or engine=verl",
        )
    LayerWindows.of(model.config)  # refuses layers that packs do not know
    chosen = TREE if chosen == "sdpa" else chosen
    if chosen != own:
        model.set_attn_implementation(chosen)


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    tree: Tree | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Torch's sdpa, run by run for packs. [1, H, N, D] in, [1, N, H, D] out."""
    if tree is None:
        return grouped_attention(module, query, key, value, attention_mask, **options)
    if isinstance(tree, Mapping):
        tree = tree[module.config.layer_types[module.layer_idx]]
    sizes = [count * length for count, length, _ in tree]
    parts = zip(
        tree, *(torch.split(states, sizes, dim=2) for states in (query, key, value)), strict=True
    )
    outputs = []
    for (count, _, mask), *qkv in parts:
        folded = [_fold(states, count) for states in qkv]
        output, _ = sdpa_attention_forward(module, *folded, mask, **options)
        outputs.append(output.flatten(0, 1))
    return torch.cat(outputs)[None], None


def _fold(states: Tensor, count: int) -> Tensor:
    """[1, H, count * n, D] -> [count, H, n, D]."""
    return states.view(states.shape[1], count, -1, states.shape[3]).transpose(0, 1)


AttentionInterface.register(TREE, tree_attention)
AttentionMaskInterface.register(TREE, sdpa_mask)


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Where each token of a pack stands; all have one entry per token."""

    segments_N: Tensor
    """The prompt or completion that it belongs to."""
    prefixes_N: Tensor
    """The other segment that it may attend to: its prompt."""
    positions_N: Tensor
    """Its position in its own episode."""

    def split(self, runs: Sequence[tuple[int, int]]) -> list[TokenPlaces]:
        """The places of each run of (count, length), as [count, length]."""
        sizes = [count * length for count, length in runs]
        columns = (self.segments_N, self.prefixes_N, self.positions_N)
        parts = zip(*(torch.split(column, sizes) for column in columns), strict=True)
        return [
            TokenPlaces(*(column.view(shape) for column in part))
            for shape, part in zip(runs, parts, strict=True)
        ]


def attention_arguments(
    places: TokenPlaces, groups: Sequence[int], attention: Attention
) -> dict[str, Any]:
    """Arguments of a forward pass over a pack, for a model with this attention."""
    name, by_layer = attention.implementation, attention.windows.by_layer
    if name == "flex_attention":
        return {"attention_mask": by_layer(lambda window: block_mask(places, window))}
    if name == TREE:
        # The four-dimensional mask only keeps transformers from building one of its own.
        unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=places.segments_N.device)
        tree = by_layer(lambda window: _runs(places, groups, window))
        return {"attention_mask": unused, "tree": tree}
    masks = by_layer(lambda window: finished_mask(dense_mask(places, window)[None, None], name))
    return {"attention_mask": masks}


def _runs(places: TokenPlaces, groups: Sequence[int], window: int | None) -> list[Run]:
    """Neighbouring groups of equal length form one run."""
    runs = [(sum(1 for _ in same), length) for length, same in itertools.groupby(groups)]
    return [
        (count, length, dense_mask(part, window)[:, None])
        for (count, length), part in zip(runs, places.split(runs), strict=True)
    ]


def dense_mask(places: TokenPlaces, window: int | None = None) -> Tensor:
    """The attention mask: [..., N, N] of bool, True where a row may attend to a column."""
    segments, prefixes, positions = places.segments_N, places.prefixes_N, places.positions_N
    same = segments[..., :, None] == segments[..., None, :]
    prompt = prefixes[..., :, None] == segments[..., None, :]
    mask = (same | prompt).tril()
    if window is None:
        return mask
    return mask & (positions[..., :, None] - positions[..., None, :] < window)


def block_mask(places: TokenPlaces, window: int | None = None) -> Any:
    """The same rule as a `BlockMask` of flex attention."""
    from torch.nn.attention.flex_attention import and_masks, create_block_mask

    segments_N, prefixes_N, positions_N = places.segments_N, places.prefixes_N, places.positions_N

    def in_episode(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = segments_N[query] == segments_N[key]
        prompt = prefixes_N[query] == segments_N[key]
        return (same | prompt) & (key <= query)

    rules: list[MaskRule] = [in_episode]
    if window is not None:
        rules.append(_within(positions_N, window))
    length = len(segments_N)
    return create_block_mask(
        and_masks(*rules),
        B=None,
        H=None,
        Q_LEN=length,
        KV_LEN=length,
        device=str(segments_N.device),
    )


def _within(positions_N: Tensor, window: int) -> MaskRule:
    def is_near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return positions_N[query] - positions_N[key] < window

    return is_near
