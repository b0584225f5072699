"""The settings that a run recorded beside the model it made, read as data.

A manifest describes a run and never decides what runs here: of it only known choices and numbers
are read.
    recorded_choice(Path("runs/lake/model"), "thinking", ("auto", "on", "off"))
    prediction_limit(recorded_config(Path("runs/lake/model")))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from terrella.core.run_folder import RUN_DEPTH, is_run, read_manifest

Choice = TypeVar("Choice")
LEAST_PREDICTION = 128
"""Tokens of a predicted observation where a run records a limit of other, shorter replies."""


def run_around(folder: Path) -> Path | None:
    """The finished run that a folder belongs to: the folder itself, or one that it is in."""
    if not folder.is_dir():
        return None
    places = (folder, *list(folder.absolute().parents)[: RUN_DEPTH - 1])
    return next((place for place in places if is_run(place)), None)


def recorded_config(folder: Path) -> Mapping[str, Any]:
    """The config of the run that a folder belongs to; empty without one."""
    run = run_around(folder)
    return read_manifest(run).config if run else {}


def recorded_choice(folder: Path, name: str, choices: Sequence[Choice]) -> Choice | None:
    """One setting of that config, if it is one of the known choices."""
    told = recorded_config(folder).get(name)
    return next((choice for choice in choices if choice == told), None)


def prediction_limit(config: Mapping[str, Any]) -> int:
    """Most tokens of a predicted observation: the run's `turn_tokens`, if it is not too small."""
    recorded = config.get("turn_tokens")
    return max(recorded, LEAST_PREDICTION) if type(recorded) is int else LEAST_PREDICTION
