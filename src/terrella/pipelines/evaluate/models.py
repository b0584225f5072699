"""Which model is evaluated: a run's folder, a Hugging Face folder, a preset, or an endpoint.

A run folder says what its model was trained for, and says nothing about this machine.
    run_of("runs/lake/fitted"); weights_of("runs/lake"); trained_role("runs/lake")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from terrella.core.config import dump
from terrella.core.errors import ConfigError, StoreError
from terrella.core.integrity import folder_sha256
from terrella.core.recorded_settings import run_around
from terrella.core.run_folder import read_manifest
from terrella.core.world import World
from terrella.engines.interface import Model
from terrella.models.names import check_model_name

Role = Literal["agent", "world-model"]
WORLD_MODELS = ("TrainWorldModel", "TextGameModel", "PageModel")
"""Pipelines whose models predict."""
FINAL_FOLDERS = ("model", "rl/model", "self_play", "fitted")
"""Where pipelines leave weights; the first that exists was made last."""
SCRATCH_TURN_TOKENS, CHAT_TURN_TOKENS, THINKING_TURN_TOKENS = 32, 256, 2048
"""Longest reply of a model from scratch, of any other, and of one that thinks.

They hold where nothing else says it.
"""
EPISODE_TOKENS, THINKING_EPISODE_TOKENS = 4096, 32_768
"""The same for an episode."""


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """What was evaluated, such that it can be recognised."""

    kind: Literal["folder", "hub", "endpoint"]
    name: str
    """A path, a name on a hub, or the name of the model at the endpoint."""
    url: str = ""
    """The endpoint's address."""
    sha256: str | None = None
    """Hash of all files of a folder; None where the weights are elsewhere."""


def is_address(model: str) -> bool:
    """Whether a model is meant by the address of an endpoint."""
    return model.startswith(("http://", "https://"))


def run_of(model: str) -> Path | None:
    """The run that a model belongs to: its folder, or one that the model's folder is in."""
    return None if is_address(model) else run_around(Path(model))


def weights_of(model: str) -> str:
    """The name or folder of the weights: of a run the last ones that it made."""
    folder = Path(model)
    if not folder.is_dir() or (folder / "config.json").is_file():
        check_model_name(model)
        return model
    for name in FINAL_FOLDERS:
        if (folder / name / "config.json").is_file():
            return str(folder / name)
    raise ConfigError(
        model,
        f"holds no model: neither config.json nor {', '.join(FINAL_FOLDERS)}",
        "name a Hugging Face folder, or a run that has finished",
    )


def trained_role(model: str) -> Role:
    """What a run's model was trained for; other models act unless told otherwise."""
    run = run_of(model)
    config: Mapping[str, Any] = read_manifest(run).config if run else {}
    name = str(config.get("class", "")).rpartition(":")[2]
    asked = config.get("ask") == "observation" or config.get("learn") == "world-model"
    return "world-model" if name in WORLD_MODELS or asked else "agent"


def refuse_practised(model: str, worlds: Mapping[str, World.Config]) -> None:
    """Refuse a test that holds what the model's own run has practised."""
    run = run_of(model)
    trained = read_manifest(run).config if run else {}
    for name, world in worlds.items():
        kind = dump(world)["class"]
        if any(world.shares_tasks(each) for each in _parts(trained) if each.get("class") == kind):
            raise ConfigError(
                name,
                f"its test holds all tasks, and {run} has practised some of them",
                "leave world.test_all out: then only tasks are played that no run practises",
            )


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every record inside a manifest's config."""
    if isinstance(value, Mapping):
        yield value
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _parts(each)


def identify(weights: Model) -> ModelIdentity:
    """The identity of a model that is loaded here."""
    folder = Path(weights)
    if not folder.is_dir():
        return ModelIdentity(kind="hub", name=str(weights))
    return ModelIdentity(kind="folder", name=str(weights), sha256=folder_sha256(folder))


def check_same(known: ModelIdentity, now: ModelIdentity, where: Path) -> None:
    """Refuse to continue an evaluation of another model."""
    if known != now:
        there, here = (each.sha256 or each.name for each in (known, now))
        raise StoreError(
            str(where),
            f"was started with another model: {known.name} is {there} there, {here} here",
            "choose another folder with --out",
        )
