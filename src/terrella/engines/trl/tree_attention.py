"""Attention within packs: a token attends causally to its own segment and to its prompt.

Groups of a pack do not attend to each other, so attention is computed group by group (neighbours of
equal length together). One mask over the whole pack would spend most of its time on masked pairs.
Flex attention (GPUs) takes the same rule as a function and skips empty blocks. The model's
attention implementation decides which of them is used.
    use_attention(model, "auto")
    model(..., **pack.attention(model.config._attn_implementation))
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

from terrella.core.errors import ConfigError

TREE = "terrella_tree"
Run = tuple[int, int, Tensor]
"""Neighbouring groups of equal length: their count, their length n, and their mask.

The mask is a bool tensor [count, 1, n, n].
"""


def use_attention(model: Any, wanted: str) -> None:
    """Make a model compute packs with this implementation; "auto" keeps the model's own.

    With sdpa, packs are computed group by group; other inputs (generation) use plain sdpa.
    """
    own = model.config._attn_implementation
    chosen = own if wanted == "auto" else wanted
    if chosen not in (TREE, "sdpa", "flex_attention", "eager"):
        raise ConfigError(
            "attention",
            f"{chosen} takes no mask, and a pack needs one: prompts are shared by completions",
            "use sdpa or flex_attention, or engine=verl",
        )
    chosen = TREE if chosen == "sdpa" else chosen
    if chosen != own:
        model.set_attn_implementation(chosen)


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    tree: Sequence[Run] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Torch's sdpa, run by run for packs. [1, H, N, D] in, [1, N, H, D] out."""
    if tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0], None
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


def attention_arguments(
    segments_N: Tensor, prefixes_N: Tensor, groups: Sequence[int], implementation: str
) -> dict[str, Any]:
    """Arguments of a forward pass over a pack, for this attention implementation."""
    if implementation == "flex_attention":
        return {"attention_mask": block_mask(segments_N, prefixes_N)}
    if implementation != TREE:
        return {"attention_mask": dense_mask(segments_N, prefixes_N)[None, None]}
    # The four-dimensional mask only keeps transformers from building one of its own.
    unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=segments_N.device)
    return {"attention_mask": unused, "tree": _runs(segments_N, prefixes_N, groups)}


def _runs(segments_N: Tensor, prefixes_N: Tensor, groups: Sequence[int]) -> list[Run]:
    """Neighbouring groups of equal length form one run."""
    lengths = [(length, sum(1 for _ in same)) for length, same in itertools.groupby(groups)]
    sizes = [length * count for length, count in lengths]
    parts = zip(
        lengths, torch.split(segments_N, sizes), torch.split(prefixes_N, sizes), strict=True
    )
    runs = []
    for (length, count), segments, prefixes in parts:
        mask = dense_mask(segments.view(count, length), prefixes.view(count, length))
        runs.append((count, length, mask[:, None]))
    return runs


def dense_mask(segments: Tensor, prefixes: Tensor) -> Tensor:
    """The attention mask: [..., N, N] of bool, True where a row may attend to a column."""
    same = segments[..., :, None] == segments[..., None, :]
    prompt = prefixes[..., :, None] == segments[..., None, :]
    return (same | prompt).tril()


def block_mask(segments_N: Tensor, prefixes_N: Tensor) -> Any:
    """The same rule as a `BlockMask` of flex attention."""
    from torch.nn.attention.flex_attention import create_block_mask

    def may_attend(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = segments_N[query] == segments_N[key]
        prompt = prefixes_N[query] == segments_N[key]
        return (same | prompt) & (key <= query)

    length = len(segments_N)
    return create_block_mask(
        may_attend, B=None, H=None, Q_LEN=length, KV_LEN=length, device=str(segments_N.device)
    )
