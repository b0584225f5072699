"""The state of a learner on disk: weights, optimizer and step, whole or absent, no pickle.

Under FSDP2 every process writes its own shards (`sharded_state`), and the state belongs to that
number of processes. A learner draws no random numbers, so there is no random state.
    save(folder, accelerator, policy, optimizer, {"head": "token"}, steps=3)
    steps = load(folder, accelerator, policy, optimizer, {"head": "token"})
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import DistributedType
from safetensors.torch import load_file, save_file

from terrella.core.errors import EngineError
from terrella.core.files import SCRATCH, read_json, remove_folder, replace_folder
from terrella.engines.checkpoints import (
    MANIFEST,
    checkpoint_damage,
    listed_file,
    saved_step,
    write_manifest,
)
from terrella.engines.trl import sharded_state
from terrella.engines.trl.checkpoint_files import (
    load_optimizer,
    plain_tensors,
    save_optimizer,
    write_json,
)

WEIGHTS, FACTS = "weights.safetensors", "learner.json"


def save(
    folder: Path,
    accelerator: Any,
    policy: Any,
    optimizer: Any,
    facts: Mapping[str, Any],
    steps: int,
) -> None:
    """Write a folder beside, then put it in place of an older one. All processes call it."""
    fresh = _fresh(folder)
    if accelerator.is_main_process:
        if (fresh / MANIFEST).is_file() and _newest(folder) == fresh:
            replace_folder(fresh, folder)  # a killed save did not come to this
        remove_folder(fresh)
        fresh.mkdir(parents=True)
        write_json(fresh / FACTS, dict(facts))
    accelerator.wait_for_everyone()
    if _sharded(accelerator):
        sharded_state.save_shards(fresh, accelerator.process_index, policy, optimizer)
    elif accelerator.is_main_process:
        # With adapters these are the adapters and a value head only: the rest does not change.
        save_file(plain_tensors(_trained(policy)), fresh / WEIGHTS)
        save_optimizer(fresh, optimizer)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        write_manifest(fresh, steps)
        replace_folder(fresh, folder)
    accelerator.wait_for_everyone()


def load(
    folder: Path, accelerator: Any, policy: Any, optimizer: Any, facts: Mapping[str, Any]
) -> int:
    """Restore weights and optimizer; returns the number of optimizer steps."""
    folder = _newest(folder)
    saved = read_json(listed_file(folder, FACTS))
    if saved != dict(facts):
        raise EngineError(
            str(folder), f"is the state of another learner: {saved} instead of {dict(facts)}"
        )
    if _sharded(accelerator):
        process, processes = accelerator.process_index, accelerator.num_processes
        sharded_state.load_weights(folder, process, processes, policy)
        sharded_state.load_optimizer(folder, process, optimizer)
    else:
        weights = load_file(listed_file(folder, WEIGHTS))
        _check_names(folder, set(weights), set(_trained(policy)))
        # Not strict: tied and frozen weights are not in the file.
        policy.load_state_dict(weights, strict=False)
        load_optimizer(folder, optimizer)
    return saved_step(folder)


def _trained(policy: Any) -> dict[str, Any]:
    return {name: each for name, each in policy.named_parameters() if each.requires_grad}


def _check_names(folder: Path, saved: set[str], trained: set[str]) -> None:
    """Refuse weights of another model before any of this one's is overwritten."""
    if saved != trained:
        names = ", ".join(sorted(saved ^ trained)[:3])
        raise EngineError(
            str(folder), f"trains other weights than this learner: {names}, ...", "check the model"
        )


def _newest(folder: Path) -> Path:
    """The saved state. A save that was killed while it replaced an older one is complete beside."""
    for each in (folder, _fresh(folder)):
        if (each / MANIFEST).is_file() and not checkpoint_damage(each):
            return each
    if not (folder / MANIFEST).is_file():
        raise EngineError(str(folder), "there is no saved state", "check the path")
    damage = checkpoint_damage(folder)
    raise EngineError(str(folder), f"is damaged: {damage}", "load an earlier state")


def _fresh(folder: Path) -> Path:
    return folder.with_name(folder.name + SCRATCH)


def _sharded(accelerator: Any) -> bool:
    return bool(accelerator.distributed_type == DistributedType.FSDP)
