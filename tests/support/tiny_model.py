"""An untrained model of 20k parameters, a Llama by default; its replies are random characters."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from terrella.models.characters import character_tokenizer

torch.set_num_threads(1)


KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}
WINDOWS = {
    "llama": {},
    "gemma3": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 4,
        "head_dim": 16,
    },
    "mistral": {"sliding_window": 4},
}
"""Layers of one kind; of two kinds, one with a window; all with a window."""


def tiny_model(
    seed: int = 0, *, width: int = 32, layers: int = 2, kind: str = "llama", sharing: int = 1
) -> tuple[Any, Any]:
    """Model and tokenizer. Initial weights are wide: replies differ and gradients are large.

    `sharing` query heads have the same keys and values.
    """
    tokenizer = character_tokenizer(("up", "down"))
    make_config, make_model = KINDS[kind]
    config = make_config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2 * sharing,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.2,
        **WINDOWS[kind],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_model(config), tokenizer
