"""A finished folder, whatever wrote it: an episode store, a training run, a world model, an arm, a reproduction.

Everything that shows runs (viewer, report, cards) reads them here and nowhere else.
    run = read_run(Path("runs/lake")); run.kind, run.world, run.curve, run.certificate
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from terrella.core.config import load
from terrella.core.errors import ConfigError, TerrellaError
from terrella.core.world import World
from terrella.data.store import MANIFEST, EpisodeStore
from terrella.trust.certificate import Certificate
from terrella.use.imagine import CERTIFICATE

Kind = Literal["store", "rlvr", "world model", "video model", "arm", "reproduction", "run"]
"""A `run` is any other folder with a manifest that holds a config."""
OWNERS: dict[str, Kind] = {
    "Collect": "store",
    "Rlvr": "rlvr",
    "TrainWorldModel": "world model",
    "VideoModel": "video model",
    "Spa": "arm",
}


@dataclass(frozen=True)
class Run:
    """A folder that is whole."""

    folder: Path
    kind: Kind
    manifest: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The folder's own."""
        return self.folder.resolve().name

    @property
    def config(self) -> Mapping[str, Any]:
        """As it was dumped; empty where the folder holds none."""
        return dict(self.manifest.get("config", {}))

    @cached_property
    def world(self) -> World.Config | None:
        """The world's config; None when it cannot be built here (another package, another version)."""
        try:
            found = load(self.config["world"])
        except (TerrellaError, KeyError):
            return None
        return found if isinstance(found, World.Config) else None

    @cached_property
    def curve(self) -> list[dict[str, Any]]:
        """Rows of figures by step; empty where nothing was trained with verdicts."""
        path = self.folder / "curve.jsonl"
        if path.exists():
            return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        rows = self.manifest.get("curve")
        return [row for row in rows if isinstance(row, dict) and "step" in row] if isinstance(rows, list) else []

    @cached_property
    def store(self) -> EpisodeStore | None:
        """Its episodes, if it kept any: its own, or those of the first folder inside."""
        for folder in (self.folder, *sorted(path for path in self.folder.iterdir() if path.is_dir())):
            if _is_store(folder):
                return EpisodeStore.open(folder)
        return None

    @cached_property
    def certificate(self) -> Certificate | None:
        """What was measured about the model, if it was."""
        path = self.folder / CERTIFICATE
        return Certificate.load(path) if path.exists() else None

    @cached_property
    def token_files(self) -> list[Path]:
        """What was kept of the tokens that were trained on, step by step."""
        return sorted((self.folder / "rlvr" / "tokens").glob("step-*.jsonl"))


def _is_store(folder: Path) -> bool:
    return (folder / MANIFEST).exists() and "parts" in read_json(folder / MANIFEST)


def read_json(path: Path) -> Any:
    """A JSON file, or an error that names it."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            str(path), f"cannot be read: {error}", "name a folder that a command of terrella wrote"
        ) from error


def read_run(folder: Path) -> Run:
    """The run in a folder; one that is not whole is refused."""
    if (folder / "table.json").exists():
        return Run(folder, "reproduction", read_json(folder / "table.json"))
    if not (folder / MANIFEST).exists():
        begun = (folder / "plan.json").exists()
        what = "was begun, not finished" if begun else f"holds no {MANIFEST}"
        raise ConfigError(str(folder), what, "run the same command again: it resumes" if begun else "check the path")
    manifest = read_json(folder / MANIFEST)
    owner = str(manifest.get("config", {}).get("class", "")).rpartition(":")[2]
    if not owner:
        raise ConfigError(str(folder), "holds a manifest without a config", "name a folder that a command wrote")
    return Run(folder, "store" if "parts" in manifest else OWNERS.get(owner, "run"), manifest)
