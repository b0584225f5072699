"""Published transformers of iVideoGPT and RLVR-World: a Llama over frame and action ids.

RLVR-World's folders are plain Hugging Face ones without a tokenizer; iVideoGPT's put the same Llama
under `llm.`. A model that gets its actions as numbers (`action_linear`) has no ids for them, and is
refused.
    model, tokenizer = read_published_transformer(folder, vocabulary=9008, pad=9007, start=9006)
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from terrella.core.errors import ConfigError, StoreError
from terrella.core.untrusted import read_json, reading
from terrella.models.published_tokenizers import load_named
from terrella.models.video_lm import id_tokenizer

INNER = "llm."
OLD_BUFFER = "rotary_emb.inv_freq"
"""Older versions saved it; it follows from the config."""
KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
)


def read_published_transformer(
    folder: Path, *, vocabulary: int, pad: int, start: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Load a published model whose ids are those of our codec with a joint vocabulary."""
    settings = read_json(folder / "config.json")
    if not isinstance(settings, dict) or settings.get("model_type") != "llama":
        raise ConfigError(str(folder), "its config.json is not that of a Llama")
    if settings.get("vocab_size") != vocabulary:
        raise ConfigError(
            str(folder),
            f"has {settings.get('vocab_size')} ids; the codec has {vocabulary}",
            "set the tokenizer and the bins that it was trained with",
        )
    with reading(str(folder / "config.json")):
        chosen = {key: settings[key] for key in KEYS if key in settings}
        config = LlamaConfig(**chosen, pad_token_id=pad, bos_token_id=start, eos_token_id=None)
        model = LlamaForCausalLM(config)
    load_named(model, _weights(folder, tied=bool(config.tie_word_embeddings)), str(folder))
    model.generation_config = GenerationConfig(pad_token_id=pad, bos_token_id=start)
    return model, id_tokenizer(vocabulary, pad=pad, start=start)


def _weights(folder: Path, *, tied: bool) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise StoreError(
            str(folder), "has no .safetensors file", "convert it: pickles are not read"
        )
    weights: dict[str, Tensor] = {}
    for path in files:
        weights |= load_file(path)
    if any(name.startswith("action_linear") for name in weights):
        raise ConfigError(
            str(folder), "gets actions as numbers, not as ids", "use a model of RLVR-World"
        )
    named = {
        name.removeprefix(INNER): value.float()
        for name, value in weights.items()
        if not name.endswith(OLD_BUFFER)
    }
    if tied:
        named.setdefault("lm_head.weight", named["model.embed_tokens.weight"])
    return named
