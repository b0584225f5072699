"""Attention of a sampler: several query heads share keys and values, which are not copied.

Transformers' sdpa repeats keys and values for each query head if there is a mask. A sampler always
has one, and its cache holds whole prompts: most of its time went into these copies. Here the query
heads of one key head are taken for queries of one head, which gives the same numbers.
    use_grouped_attention(model)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED = "terrella_grouped"


def use_grouped_attention(model: Any) -> None:
    """Make a model that computes sdpa compute it without copies; other attention stays."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(GROUPED)


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Torch's sdpa. [B, H, T, D] in, [B, T, H, D] out; the mask is [B, 1, T, columns]."""
    batch, heads, length, size = query.shape
    shared = heads // key.shape[1]
    if shared == 1 or attention_mask is None:
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **options
        )
        return output, None
    output = scaled_dot_product_attention(
        query.reshape(batch, -1, shared * length, size),
        key,
        value,
        attn_mask=attention_mask if length == 1 else attention_mask.repeat(1, 1, shared, 1),
        dropout_p=dropout,
        scale=scaling,
    )
    return output.view(batch, heads, length, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
