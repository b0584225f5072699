"""A model as a plan sees it: the settings that decide its shapes, and nothing else.

spec = model_spec("Qwen/Qwen2.5-1.5B-Instruct")
model = make_model(spec)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from terrella.core.errors import ConfigError
from terrella.models.foreign_code import SAFE
from terrella.models.names import BUNDLED, TINY, check_model_name
from terrella.models.presets import load_config
from terrella.models.shapes import hub_shape, known_shapes


@dataclass(frozen=True)
class ModelSpec:
    """Settings of a transformers config, as JSON: it can be hashed and compared."""

    settings: str

    @property
    def config(self) -> Any:
        values = json.loads(self.settings)
        return AutoConfig.for_model(values.pop("model_type"), **values)

    def with_layers(self, layers: int) -> ModelSpec:
        """The same model with fewer layers."""
        values = json.loads(self.settings)
        values["num_hidden_layers"] = layers
        if "layer_types" in values:
            values["layer_types"] = values["layer_types"][:layers]
        return ModelSpec(json.dumps(values, sort_keys=True))


def model_spec(name: str, *, vocabulary: int = 0) -> ModelSpec:
    """The shapes of a model by name or folder; `vocabulary` is for models made from scratch."""
    if name in TINY:
        shape = TINY[name]
        return llama_spec(
            vocabulary=vocabulary, width=shape.width, layers=shape.layers, heads=shape.heads
        )
    check_model_name(name)
    if Path(name).is_dir():
        config = load_config(name)
        return ModelSpec(json.dumps(config.to_dict(), sort_keys=True, default=str))
    settings = hub_shape(BUNDLED[name].shape if name in BUNDLED else name)
    if settings is None:
        known = ", ".join(known_shapes())
        raise ConfigError(
            name,
            "its shapes are not known here",
            f"download it and name its folder; known are {known}",
        )
    return ModelSpec(json.dumps(settings, sort_keys=True))


def llama_spec(
    *, vocabulary: int, width: int, layers: int, heads: int, inner: int = 0, tied: bool = True
) -> ModelSpec:
    """A Llama made from scratch, as `models/presets.py` and `models/video_lm.py` make it."""
    settings = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner or width * 8 // 3 // 16 * 16,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "tie_word_embeddings": tied,
    }
    return ModelSpec(json.dumps(settings, sort_keys=True))


def make_model(spec: ModelSpec) -> Any:
    """A causal LM with these shapes on the meta device, in fp32 as `load_model` loads it."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(spec.config, attn_implementation="sdpa", **SAFE)


def parameters(spec: ModelSpec) -> int:
    """How many parameters the model has; a tied output layer counts once."""
    return sum(each.numel() for each in make_model(spec).parameters())
