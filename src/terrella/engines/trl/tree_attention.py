"""Who may look at whom in a pack: causal inside a segment, and onto its prompt.

A dense mask costs N^2 memory; flex attention (GPUs) takes the same rule as a function and computes only the blocks
that are not empty. The model's attention implementation decides.
    model(..., attention_mask=tree_mask(pack.segments_N, pack.prefixes_N, "sdpa"))
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def tree_mask(segments_N: Tensor, prefixes_N: Tensor, implementation: str) -> Any:
    """The mask in the form that this attention implementation takes."""
    build = block_mask if implementation == "flex_attention" else dense_mask
    return build(segments_N, prefixes_N)


def dense_mask(segments_N: Tensor, prefixes_N: Tensor) -> Tensor:
    """[1, 1, N, N] of bool."""
    same = segments_N[:, None] == segments_N
    prompt = prefixes_N[:, None] == segments_N
    return ((same | prompt).tril())[None, None]


def block_mask(segments_N: Tensor, prefixes_N: Tensor) -> Any:
    """A flex-attention `BlockMask` of the same rule."""
    from torch.nn.attention.flex_attention import create_block_mask

    def may_look(batch: Tensor, head: Tensor, reader: Tensor, read: Tensor) -> Tensor:
        same = segments_N[reader] == segments_N[read]
        prompt = prefixes_N[reader] == segments_N[read]
        return (same | prompt) & (read <= reader)

    length = len(segments_N)
    return create_block_mask(may_look, B=None, H=None, Q_LEN=length, KV_LEN=length, device=str(segments_N.device))
