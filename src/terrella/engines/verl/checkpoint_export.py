"""Export a checkpoint of verl's as a plain Hugging Face folder.

verl writes a model with adapters under PEFT's names. vLLM refuses such a folder, and transformers
fills it with new random weights. Here the adapters are merged, one file at a time. verl's
config.json names the dtype of the starting model and the attention of the training; here it names
the dtype that the weights have, and no attention.
    export_checkpoint(work / "global_step_40" / "actor", Path("runs/x/model"))
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from terrella.core.errors import EngineError
from terrella.core.files import read_json, write_json
from terrella.core.integrity import copy_folder

META = "lora_train_meta.json"
"""verl's file with the rank and alpha of adapters; a checkpoint without adapters has none."""
PREFIX, BASE, ADAPTER = "base_model.model.", ".base_layer.", ".lora_"
LOW, HIGH = ".lora_A.default.weight", ".lora_B.default.weight"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Names of dtypes in safetensors and in transformers."""


def export_checkpoint(checkpoint: Path, folder: Path) -> None:
    """Write the model of a checkpoint; the folder is complete or absent, and replaces an older one.

    The checkpoint is left as it is: verl resumes from it.
    """
    meta = read_json(checkpoint / META) if (checkpoint / META).exists() else None

    def change(copied: Path) -> None:
        if meta is not None:
            _merge_adapters(copied, scale=meta["lora_alpha"] / meta["r"])
        _describe_weights(copied)

    copy_folder(checkpoint / "huggingface", folder, change)


def _describe_weights(folder: Path) -> None:
    """Make config.json tell the truth: vLLM and transformers load weights as it says."""
    path = folder / CONFIG
    config = read_json(path)
    for name in ("torch_dtype", "attn_implementation"):
        config.pop(name, None)
    write_json(path, {**config, "dtype": _dtype(folder)})


def _dtype(folder: Path) -> str:
    """The dtype of most of the weights, by transformers' name."""
    sizes: Counter[str] = Counter()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118  it is no dict
                part = opened.get_slice(name)
                sizes[part.get_dtype()] += math.prod(part.get_shape())
    most = max(sizes, key=sizes.__getitem__, default="none")
    if most not in DTYPES:
        raise EngineError("verl", f"the weights in {folder.name} have the dtype {most}")
    return DTYPES[most]


def _merge_adapters(folder: Path, *, scale: float) -> None:
    files = sorted(folder.glob("*.safetensors"))
    adapters = dict(pair for file in files for pair in _adapters(file))
    for file in files:
        merged = {
            _plain(name): _with_adapter(name, weight, adapters, scale)
            for name, weight in load_file(file).items()
            if ADAPTER not in name
        }
        save_file(merged, file, metadata={"format": "pt"})
    if adapters:
        raise EngineError("verl", f"adapters without a layer in {folder.name}: {[*adapters][:3]}")
    if (folder / INDEX).exists():
        _rename_index(folder / INDEX)


def _adapters(file: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, "pt") as opened:
        for name in opened.keys():  # noqa: SIM118  it is no dict
            if ADAPTER in name:
                yield name, opened.get_tensor(name)


def _with_adapter(name: str, weight: Tensor, adapters: dict[str, Tensor], scale: float) -> Tensor:
    """The weight of a layer with its adapter, which is taken out of `adapters`."""
    module, base, leaf = name.rpartition(BASE)
    if not base or leaf != "weight":
        return weight
    low, high = adapters.pop(module + LOW, None), adapters.pop(module + HIGH, None)
    if low is None or high is None:
        raise EngineError("verl", f"the checkpoint has no adapter of {module}")
    change = scale * (high.float() @ low.float())
    return (weight.float() + change).to(weight.dtype)


def _plain(name: str) -> str:
    return name.removeprefix(PREFIX).replace(BASE, ".")


def _rename_index(path: Path) -> None:
    index = read_json(path)
    places = index["weight_map"].items()
    index["weight_map"] = {_plain(name): file for name, file in places if ADAPTER not in name}
    write_json(path, index)
