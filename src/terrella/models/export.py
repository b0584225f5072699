"""Export a trained model as Hugging Face tensors and folders: adapters merged, shards gathered.

The model itself is not changed. Exports and weight syncs both use `merged_weights`.
    export_model(model, tokenizer, Path("runs/x/model"))
    sampler.load_weights(merged_weights(model))
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight once, with LoRA merged, under its name in the plain model.

    LoRA is added to copies. Merging it into the model and subtracting it again would leave rounding
    errors in weights that are still being trained.
    """
    plain = plain_model(model)
    tied = set(getattr(plain, "all_tied_weights_keys", None) or ())
    deltas = {
        name: module
        for name, module in plain.named_modules()
        if hasattr(module, "get_delta_weight")
    }
    for name, parameter in plain.state_dict().items():
        module, _, leaf = name.rpartition(".")
        if "lora_" in name or name.replace(".base_layer.", ".") in tied:
            continue
        owner = module.removesuffix(".base_layer")
        whole = _gathered(parameter)
        if leaf == "weight" and owner in deltas:
            whole = _with_adapters(whole, deltas[owner])
        yield name.replace(".base_layer.", "."), whole


def plain_model(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


@torch.no_grad()
def _with_adapters(weight: Tensor, layer: Any) -> Tensor:
    for adapter in layer.active_adapters:
        weight = weight + _gathered(layer.get_delta_weight(adapter)).to(weight)
    return weight


def _gathered(weight: Tensor) -> Tensor:
    """The full tensor of a sharded one (FSDP2). Collective: every process must call it."""
    detached = weight.detach()
    whole: Tensor = detached.full_tensor() if hasattr(detached, "full_tensor") else detached
    return whole


def export_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a Hugging Face folder with merged adapters, for transformers and vLLM.

    The folder is complete or absent.
    """
    write_folder(model, dict(merged_weights(model)), tokenizer, folder)


def write_folder(model: Any, weights: Mapping[str, Tensor], tokenizer: Any, folder: Path) -> None:
    """Write these weights with the model's config and tokenizer; replaces an older export."""
    fresh = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    whole = {name: weight.contiguous() for name, weight in weights.items()}
    plain_model(model).save_pretrained(fresh, state_dict=whole)
    tokenizer.save_pretrained(fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
