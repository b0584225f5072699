"""Export a trained model as Hugging Face tensors and folders: adapters merged, shards gathered.

The model itself is not changed. Exports and weight syncs both use `MergedWeights`. It gathers one
weight at a time, so no device ever holds a second model.
    export_model(model, tokenizer, Path("runs/x/model"))
    sampler.load_weights(MergedWeights(model))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from terrella.core.files import replace_folder, scratch_folder
from terrella.core.integrity import write_listing
from terrella.models.quiet import without_bars

VALUE_HEAD = "value_head.safetensors"
"""The file of a value head, beside the weights of the model that it reads from."""
SHARD_BYTES = 50 * 10**9
"""Weights that fit in this go into one file."""


class MergedWeights:
    """Every weight once, with LoRA merged, under its name in the plain model.

    Iterating is collective where weights are sharded: every process must do it. LoRA is added to
    copies. Merging it into the model and subtracting it again would leave rounding errors in
    weights that are still being trained.
    """

    def __init__(self, model: Any, *, without: str = "") -> None:
        """`without` is the name of a submodule to leave out, such as a critic."""
        self.model = model
        self.without = f"{without}." if without else ""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        adapted = {
            name: module
            for name, module in plain_model(self.model).named_modules()
            if hasattr(module, "get_delta_weight")
        }
        for name, weight in self._own():
            module, _, leaf = name.rpartition(".")
            owner = module.removesuffix(".base_layer")
            whole = whole_tensor(weight)
            if leaf == "weight" and owner in adapted:
                whole = _with_adapters(whole, adapted[owner])
            yield name.replace(".base_layer.", "."), whole

    def shapes(self) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
        """Names, whole shapes and dtypes, in the order of iteration. Nothing is gathered."""
        return [
            (name.replace(".base_layer.", "."), tuple(weight.shape), weight.dtype)
            for name, weight in self._own()
        ]

    def on_host(self, *, keep: bool = True) -> dict[str, Tensor]:
        """All weights in host memory; empty where `keep` is false, after taking part."""
        return {name: weight.cpu() for name, weight in self if keep}

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        plain = plain_model(self.model)
        tied = set(getattr(plain, "all_tied_weights_keys", None) or ())
        for name, weight in plain.state_dict().items():
            left_out = self.without and name.startswith(self.without)
            if (
                not left_out
                and "lora_" not in name
                and name.replace(".base_layer.", ".") not in tied
            ):
                yield name, weight


def plain_model(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


@torch.no_grad()
def _with_adapters(weight: Tensor, layer: Any) -> Tensor:
    for adapter in layer.active_adapters:
        weight = weight + whole_tensor(layer.get_delta_weight(adapter)).to(weight)
    return weight


def whole_tensor(weight: Tensor) -> Tensor:
    """The full tensor of a sharded one (FSDP2). Collective: every process must call it."""
    detached = weight.detach()
    whole: Tensor = detached.full_tensor() if hasattr(detached, "full_tensor") else detached
    return whole


def export_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a Hugging Face folder with merged adapters, for transformers and vLLM.

    The folder is complete or absent.
    """
    write_folder(model, MergedWeights(model).on_host(), tokenizer, folder)


def write_folder(
    model: Any,
    weights: Mapping[str, Tensor],
    tokenizer: Any,
    folder: Path,
    *,
    value_head: Mapping[str, Tensor] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write these weights with the model's config and tokenizer; replaces an older export.

    A listing with the hash of each file lies beside them (`core/integrity.py`).
    """
    fresh = scratch_folder(folder)
    whole = {name: weight.contiguous() for name, weight in weights.items()}
    with without_bars():
        plain_model(model).save_pretrained(fresh, state_dict=whole, max_shard_size=shard_bytes)
    tokenizer.save_pretrained(fresh)
    if value_head is not None:
        save_file(dict(value_head), fresh / VALUE_HEAD)
    write_listing(fresh)
    replace_folder(fresh, folder)
