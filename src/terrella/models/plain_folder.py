"""Any model folder of ours or of others as a plain Hugging Face folder: merged, cast, in shards.

An adapter in PEFT's format is merged in fp32 before the weights are cast. What was written is
loaded again, and its predictions are compared with those of the source.
    written = write_plain(Path("runs/x/model"), Path("exported"), dtype="bfloat16")
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from terrella.core.errors import ConfigError
from terrella.core.untrusted import read_json
from terrella.models.export import SHARD_BYTES, MergedWeights, plain_model, write_folder
from terrella.models.foreign_code import SAFE, refuse_code
from terrella.models.names import BUNDLED
from terrella.models.presets import load_config, load_model, load_tokenizer

Dtype = Literal["stored", "float32", "bfloat16", "float16"]
ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
PROBE_TOKENS = 32
"""Tokens whose predictions are compared."""


@dataclass(frozen=True, kw_only=True)
class ExportContents:
    """What an export holds."""

    parameters: int
    dtype: str
    shards: int
    bytes: int
    merged: int
    """Layers whose adapter was merged."""
    difference: float
    """The largest difference of a probability on the probe, from the source before it was cast."""
    agrees: float
    """Share of the probe's positions at which both have the same most likely token."""


def write_plain(
    source: Path,
    folder: Path,
    *,
    base: str | None = None,
    dtype: Dtype = "stored",
    shard_bytes: int = SHARD_BYTES,
) -> ExportContents:
    """Write the model in `source`; an adapter needs the name or the folder of its `base`."""
    is_adapter = (source / ADAPTER_CONFIG).exists() and not (source / "config.json").exists()
    start = base if is_adapter and base is not None else source
    stored = _stored_dtype(start)
    kind = stored if dtype == "stored" else getattr(torch, dtype)
    model, tokenizer = load_model(start, device="cpu")
    merged = 0
    if is_adapter:
        model, merged = _with_adapter(model, source)
        tokenizer = _own_tokenizer(source, tokenizer)
    before = _predictions(model)
    weights = {name: weight.to(kind) for name, weight in MergedWeights(model).on_host().items()}
    plain_model(model).to(kind)  # the config that is saved says this dtype
    write_folder(model, weights, tokenizer, folder, shard_bytes=shard_bytes)
    del model
    again, _ = load_model(folder, device="cpu")
    after = _predictions(again)
    files = sorted(folder.glob("*.safetensors"))
    return ExportContents(
        parameters=sum(weight.numel() for weight in weights.values()),
        dtype=str(kind).removeprefix("torch."),
        shards=len(files),
        bytes=sum(path.stat().st_size for path in files),
        merged=merged,
        difference=float((before.softmax(-1) - after.softmax(-1)).abs().max()),
        agrees=float((before.argmax(-1) == after.argmax(-1)).float().mean()),
    )


def adapter_base(source: Path) -> str | None:
    """The base model that an adapter names; None if this is no adapter. A file decides nothing."""
    path = source / ADAPTER_CONFIG
    if not path.exists() or (source / "config.json").exists():
        return None
    refuse_code(source)
    about = read_json(path)
    named = about.get("base_model_name_or_path") if isinstance(about, dict) else None
    return str(named)[:200] if named else "a model that it does not name"


def _stored_dtype(source: str | Path) -> torch.dtype:
    if source in BUNDLED:  # made here, from a quantised file
        return torch.float32
    stored = load_config(source).dtype
    found = getattr(torch, stored, None) if isinstance(stored, str) else stored
    return found if isinstance(found, torch.dtype) else torch.float32


def _with_adapter(model: Any, source: Path) -> tuple[Any, int]:
    """The model with the adapter of a folder; every weight of the file must have its place."""
    from peft import PeftModel
    from safetensors import safe_open

    refuse_code(source)
    if not (source / ADAPTER).exists():
        raise ConfigError(str(source), f"has no {ADAPTER}", "save the adapter as safetensors")
    try:
        adapted = PeftModel.from_pretrained(model, str(source), local_files_only=True, **SAFE)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        first_line = str(error).strip().partition("\n")[0][:300]
        raise ConfigError(
            str(source), f"does not fit its base: {first_line}", "name the right model: --base"
        ) from error
    with safe_open(source / ADAPTER, framework="pt") as file:
        listed = len(file.keys())
    found = sum("lora_" in name for name in adapted.state_dict())
    if found != listed:
        raise ConfigError(
            str(source),
            f"has {listed} weights, and {found} of the base's layers take them",
            "name the right model with --base, or check target_modules",
        )
    layers = sum(hasattr(module, "get_delta_weight") for module in adapted.modules())
    return adapted, layers


def _own_tokenizer(source: Path, tokenizer: Any) -> Any:
    """The adapter's tokenizer where it has one: it may have a chat template of its own."""
    has_one = (source / "tokenizer_config.json").exists()
    return load_tokenizer(source) if has_one else tokenizer


@torch.no_grad()
def _predictions(model: Any) -> Tensor:
    """Logits on ids that are spread over the vocabulary."""
    model.eval()
    size = int(plain_model(model).get_input_embeddings().weight.shape[0])
    step = max(1, size // PROBE_TOKENS)
    ids = torch.arange(0, size, step)[:PROBE_TOKENS].unsqueeze(0)
    logits: Tensor = model(input_ids=ids).logits[0].float()
    return logits
