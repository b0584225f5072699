"""Model folders of an endpoint's adapters: where the weights are there, and what can be had here.

A folder holds `tinker.json`, which names the saved state at the endpoint. Where the base model is a
local folder, the adapter is merged into it: a plain Hugging Face folder. Otherwise the folder
holds the adapter in PEFT's format.
    reference = read_reference(Path("runs/x/warm"))
    write_model(archive, reference, Path("runs/x/model"), tokenizer)
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from terrella.core.config import record_from_json
from terrella.core.errors import EngineError
from terrella.core.files import SCRATCH, read_json, replace_folder, scratch_folder, write_json
from terrella.core.integrity import write_listing
from terrella.core.run_folder import check_model
from terrella.core.untrusted import unpack_tar

logger = logging.getLogger("terrella")
REFERENCE = "tinker.json"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A trained adapter at the endpoint."""

    base_model: str
    """The base model's name at the endpoint."""
    base: str
    """The base model here: a folder, or a hub name."""
    rank: int
    state: str
    """The saved weights and optimizer."""


def read_reference(model: str | Path) -> Reference | None:
    """None for a model that was not trained at an endpoint."""
    path = Path(model) / REFERENCE
    if not path.exists():
        return None
    check_model(model)
    return record_from_json(Reference, read_json(path))


def write_model(archive: Path, reference: Reference, folder: Path, tokenizer: Any) -> None:
    """Write a model folder from an adapter's archive; it is complete or absent."""
    fresh = scratch_folder(folder)
    with tempfile.TemporaryDirectory() as unpacked:
        unpack_tar(archive, Path(unpacked))
        weights, config = read_adapter(Path(unpacked))
    if Path(reference.base).is_dir():
        _write_merged(weights, config, Path(reference.base), fresh)
    else:
        _write_adapter(weights, config, reference, fresh)
    tokenizer.save_pretrained(fresh)
    write_json(fresh / REFERENCE, asdict(reference))
    write_listing(fresh)
    replace_folder(fresh, folder)


def read_adapter(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights and the config of an unpacked adapter, with its `target_modules` filled in.

    SkyRL 0.3 leaves them out; PEFT then loads the folder without an error and without most weights.
    """
    from safetensors.torch import load_file

    files = {path.name: path for path in folder.rglob("*") if path.is_file()}
    if CONFIG not in files or WEIGHTS not in files:
        raise EngineError("tinker", f"the adapter's archive holds {', '.join(sorted(files))} only")
    weights, config = load_file(files[WEIGHTS]), read_json(files[CONFIG])
    modules = {module.rpartition(".")[2] for module, _, _ in pairs(weights)}
    config["target_modules"] = sorted(modules)
    return weights, config


def pairs(weights: Mapping[str, Tensor]) -> list[tuple[str, Tensor, Tensor]]:
    """Each adapted module with its A and B; a weight that is neither is an error."""
    sides: dict[str, dict[str, Tensor]] = {}
    for key, weight in weights.items():
        match = KEY.fullmatch(key)
        if match is None:
            raise EngineError("tinker", f"the adapter holds {key}, which is no LoRA weight")
        sides.setdefault(match["module"], {})[match["side"]] = weight
    halves = [module for module, both in sides.items() if len(both) < 2]
    if halves or not sides:
        raise EngineError("tinker", f"the adapter is incomplete: {', '.join(halves) or 'empty'}")
    return [(module, both["A"], both["B"]) for module, both in sides.items()]


def _write_merged(
    weights: Mapping[str, Tensor], config: Mapping[str, Any], base: Path, folder: Path
) -> None:
    """Write the base model with the adapter merged; every weight of the adapter must fit."""
    from terrella.models.export import write_folder
    from terrella.models.presets import load_model

    model, tokenizer = load_model(str(base), device="cpu")
    whole = {name: weight.detach() for name, weight in model.state_dict().items()}
    scale = config["lora_alpha"] / config["r"]
    for module, low, high in pairs(weights):
        name = f"{module}.weight"
        change = scale * (high.float() @ low.float())
        if name not in whole or whole[name].shape != change.shape:
            raise EngineError("tinker", f"the adapter changes {name}, which {base} does not have")
        whole[name] = whole[name] + change.to(whole[name].dtype)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    kept = {name: weight for name, weight in whole.items() if name not in tied}
    write_folder(model, kept, tokenizer, folder)


def _write_adapter(
    weights: Mapping[str, Tensor], config: dict[str, Any], reference: Reference, folder: Path
) -> None:
    """Write PEFT's format: transformers loads it together with the base model of that name."""
    from safetensors.torch import save_file

    from terrella.models.presets import load_config

    folder.mkdir(parents=True)
    save_file(dict(weights), folder / WEIGHTS)
    write_json(folder / CONFIG, config | {"base_model_name_or_path": reference.base})
    load_config(reference.base).save_pretrained(folder)
    logger.warning(
        "%s holds an adapter of %s, not a whole model: the base is not a local folder",
        folder.with_suffix("") if folder.suffix == SCRATCH else folder,
        reference.base,
    )
