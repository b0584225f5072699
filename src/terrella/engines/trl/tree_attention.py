"""Who may look at whom in a pack: causal inside a segment, and onto its prompt.

A pack's groups do not see each other, so attention is computed group by group (neighbours of equal length together):
one mask over the whole pack would spend most of its time on pairs that may not look. Flex attention (GPUs) takes the
same rule as a function and computes only the blocks that are not empty. The model's implementation decides.
    use_tree_attention(model); model(..., **attention_arguments(pack, model.config._attn_implementation))
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

TREE = "terrella_tree"
Run = tuple[int, int, Tensor]
"""How many neighbouring groups, how long each is, and who may look at whom in them: [count, 1, n, n] of bool."""


def use_tree_attention(model: Any) -> None:
    """Let a model read packs group by group; whatever else it reads (generation) stays torch's sdpa."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(TREE)


def tree_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, tree: Sequence[Run] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Torch's sdpa, run by run where a pack says so. [1, H, N, D] in, [1, N, H, D] out."""
    if tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0], None
    sizes = [count * length for count, length, _ in tree]
    parts = zip(tree, *(torch.split(states, sizes, dim=2) for states in (query, key, value)), strict=True)
    found = [
        sdpa_attention_forward(module, *(_fold(states, count) for states in qkv), mask, **options)[0].flatten(0, 1)
        for (count, _, mask), *qkv in parts
    ]
    return torch.cat(found)[None], None


def _fold(states: Tensor, count: int) -> Tensor:
    """[1, H, count * n, D] -> [count, H, n, D]."""
    return states.view(states.shape[1], count, -1, states.shape[3]).transpose(0, 1)


AttentionInterface.register(TREE, tree_attention)
AttentionMaskInterface.register(TREE, sdpa_mask)


def attention_arguments(
    segments_N: Tensor, prefixes_N: Tensor, groups: Sequence[int], implementation: str
) -> dict[str, Any]:
    """What a forward pass over a pack is told, in the words of this attention implementation."""
    if implementation == "flex_attention":
        return {"attention_mask": block_mask(segments_N, prefixes_N)}
    if implementation != TREE:
        return {"attention_mask": dense_mask(segments_N, prefixes_N)[None, None]}
    # The four-dimensional mask only keeps the library from building one of its own.
    unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=segments_N.device)
    return {"attention_mask": unused, "tree": _runs(segments_N, prefixes_N, groups)}


def _runs(segments_N: Tensor, prefixes_N: Tensor, groups: Sequence[int]) -> list[Run]:
    """Neighbouring groups of equal length are one run."""
    lengths = [(length, sum(1 for _ in same)) for length, same in itertools.groupby(groups)]
    sizes = [length * count for length, count in lengths]
    parts = zip(lengths, torch.split(segments_N, sizes), torch.split(prefixes_N, sizes), strict=True)
    return [
        (count, length, dense_mask(segments.view(count, length), prefixes.view(count, length))[:, None])
        for (length, count), segments, prefixes in parts
    ]


def dense_mask(segments: Tensor, prefixes: Tensor) -> Tensor:
    """[..., N, N] of bool."""
    same = segments[..., :, None] == segments[..., None, :]
    prompt = prefixes[..., :, None] == segments[..., None, :]
    return (same | prompt).tril()


def block_mask(segments_N: Tensor, prefixes_N: Tensor) -> Any:
    """A flex-attention `BlockMask` of the same rule."""
    from torch.nn.attention.flex_attention import create_block_mask

    def may_look(batch: Tensor, head: Tensor, reader: Tensor, read: Tensor) -> Tensor:
        same = segments_N[reader] == segments_N[read]
        prompt = prefixes_N[reader] == segments_N[read]
        return (same | prompt) & (read <= reader)

    length = len(segments_N)
    return create_block_mask(may_look, B=None, H=None, Q_LEN=length, KV_LEN=length, device=str(segments_N.device))
