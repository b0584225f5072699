"""Shapes of public models, so that a plan needs neither their weights nor a network.

The numbers are those of each model's `config.json` on the Hugging Face Hub. A test compares the
parameters that they give with the published counts. Nothing here imports torch.
    hub_shape("Qwen/Qwen2.5-1.5B-Instruct")["hidden_size"] == 1536
"""

from __future__ import annotations

from typing import Any

LLAMA_3_WORDS = 128_256
QWEN_WORDS, QWEN_WIDE_WORDS = 151_936, 152_064
FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
"""What the numbers of `_SHAPES` are, after the architecture."""

_SHAPES: dict[str, tuple[Any, ...]] = {
    "qwen2.5-0.5b": ("qwen2", 896, 4864, 24, 14, 2, QWEN_WORDS, True),
    "qwen2.5-1.5b": ("qwen2", 1536, 8960, 28, 12, 2, QWEN_WORDS, True),
    "qwen2.5-3b": ("qwen2", 2048, 11_008, 36, 16, 2, QWEN_WORDS, True),
    "qwen2.5-7b": ("qwen2", 3584, 18_944, 28, 28, 4, QWEN_WIDE_WORDS, False),
    "qwen2.5-14b": ("qwen2", 5120, 13_824, 48, 40, 8, QWEN_WIDE_WORDS, False),
    "qwen2.5-32b": ("qwen2", 5120, 27_648, 64, 40, 8, QWEN_WIDE_WORDS, False),
    "deepseek-r1-distill-qwen-1.5b": ("qwen2", 1536, 8960, 28, 12, 2, QWEN_WORDS, False),
    "deepseek-r1-distill-qwen-7b": ("qwen2", 3584, 18_944, 28, 28, 4, QWEN_WIDE_WORDS, False),
    "qwen3-0.6b": ("qwen3", 1024, 3072, 28, 16, 8, QWEN_WORDS, True),
    "qwen3-1.7b": ("qwen3", 2048, 6144, 28, 16, 8, QWEN_WORDS, True),
    "qwen3-4b": ("qwen3", 2560, 9728, 36, 32, 8, QWEN_WORDS, True),
    "qwen3-8b": ("qwen3", 4096, 12_288, 36, 32, 8, QWEN_WORDS, False),
    "llama-3.2-1b": ("llama", 2048, 8192, 16, 32, 8, LLAMA_3_WORDS, True),
    "llama-3.2-3b": ("llama", 3072, 8192, 28, 24, 8, LLAMA_3_WORDS, True),
    "llama-3.1-8b": ("llama", 4096, 14_336, 32, 32, 8, LLAMA_3_WORDS, False),
    "glm-4-9b": ("glm", 4096, 13_696, 40, 32, 2, 151_552, False),
    "smollm2-135m": ("llama", 576, 1536, 30, 9, 3, 49_152, True),
    "gemma-3-270m": ("gemma3_text", 640, 2048, 18, 4, 1, 262_144, True),
}
HEADS = {"qwen3": 128, "glm": 128, "gemma3_text": 256}
"""Width of a head, where it is not hidden_size / num_attention_heads."""
PUBLISHED_PARAMETERS = {
    "qwen2.5-0.5b": 0.494e9,
    "qwen2.5-1.5b": 1.544e9,
    "qwen2.5-3b": 3.086e9,
    "qwen2.5-7b": 7.616e9,
    "qwen2.5-14b": 14.77e9,
    "qwen2.5-32b": 32.76e9,
    "deepseek-r1-distill-qwen-1.5b": 1.777e9,
    "deepseek-r1-distill-qwen-7b": 7.616e9,
    "qwen3-0.6b": 0.596e9,
    "qwen3-1.7b": 1.721e9,
    "qwen3-4b": 4.022e9,
    "qwen3-8b": 8.191e9,
    "llama-3.2-1b": 1.236e9,
    "llama-3.2-3b": 3.213e9,
    "llama-3.1-8b": 8.030e9,
    "glm-4-9b": 9.400e9,
    "smollm2-135m": 0.1345e9,
    "gemma-3-270m": 0.268e9,
}
"""Parameters by the model cards; a tied output layer counts once."""
TUNED = ("-hf", "-instruct", "-chat", "-it", "-base")
"""Endings of names that change the weights and not the shape."""


def hub_shape(name: str) -> dict[str, Any] | None:
    """Settings of the transformers config of a known public model; None for another name."""
    known = name.rpartition("/")[2].lower()
    for ending in TUNED:
        known = known.removesuffix(ending)
    if known not in _SHAPES:
        return None
    kind, *numbers = _SHAPES[known]
    settings: dict[str, Any] = {"model_type": kind, **dict(zip(FIELDS, numbers, strict=True))}
    if kind in HEADS:
        settings["head_dim"] = HEADS[kind]
    return settings


def known_shapes() -> tuple[str, ...]:
    """Names of all models in the table."""
    return tuple(_SHAPES)
