"""Which model is evaluated: a run's folder, a Hugging Face folder, a preset, or an endpoint.

A run folder says how its model was trained to talk (the form of a reply, actions a turn, limits);
an evaluation uses the same unless told otherwise. It says nothing about this machine.
    weights_of("runs/lake"); talk_settings("runs/lake"); identify("smollm2", folder)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from terrella.codecs.tagged import ORDERS
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError, StoreError
from terrella.core.integrity import folder_sha256
from terrella.core.run_folder import MANIFEST, read_manifest
from terrella.engines.interface import Model
from terrella.models.names import TINY, check_model_name

TALK_SETTINGS = ("max_actions", "max_turns", "turn_tokens", "episode_tokens")
SCRATCH_TURN_TOKENS, CHAT_TURN_TOKENS = 32, 256
"""Longest reply of a model from scratch and of any other, where nothing else says it."""


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """What was evaluated, such that it can be recognised."""

    kind: Literal["folder", "hub", "endpoint"]
    name: str
    """A path, a name on a hub, or the name of the model at the endpoint."""
    url: str = ""
    """The endpoint's address."""
    sha256: str | None = None
    """Of all files of a folder; None where the weights are elsewhere."""


def is_address(model: str) -> bool:
    """Whether a model is meant by the address of an endpoint."""
    return model.startswith(("http://", "https://"))


def is_run(model: str) -> bool:
    """Whether a folder was written by a command of ours."""
    return (Path(model) / MANIFEST).is_file()


def weights_of(model: str) -> str:
    """The name or folder of the weights: a run keeps its model in `model/`."""
    folder = Path(model)
    if not folder.is_dir() or (folder / "config.json").is_file():
        check_model_name(model)
        return model
    if (folder / "model" / "config.json").is_file():
        return str(folder / "model")
    if is_run(model):
        raise ConfigError(model, "this run has no `model/`", "name a folder with weights")
    raise ConfigError(
        model,
        "holds no model: neither config.json nor a run's `model/`",
        "name a Hugging Face folder, or a run that has finished",
    )


def talk_settings(model: str) -> dict[str, Any]:
    """How a run's model was trained to talk; for other models what fits most."""
    tokens = SCRATCH_TURN_TOKENS if model in TINY else CHAT_TURN_TOKENS
    settings: dict[str, Any] = {"turn_tokens": tokens}
    if not is_address(model) and is_run(model):
        config: Mapping[str, Any] = read_manifest(Path(model)).config
        for name in TALK_SETTINGS:
            if isinstance(config.get(name), int):
                settings[name] = config[name]
        if config.get("form") in ORDERS:
            settings["form"] = config["form"]
    return settings


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


def require_text(config: Configurable.Config) -> None:
    """Refuse a world whose observations are frames: chat models read text."""
    world = config.build()
    observation, _ = world.reset(seed=0)
    if observation.kind.value == "frames":
        raise ConfigError(
            world.name, "shows frames, and a chat model reads text", "`terrella certify` takes them"
        )
