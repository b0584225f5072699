"""Read a finished run folder, whichever command wrote it.

An episode store, a training run, a world model, a video model, an arm, an evaluation or a
reproduction.
Everything that shows runs (viewer, report, cards) reads them here and nowhere else.
    run = read_run(Path("runs/lake"))
    run.kind, run.world, run.curve, run.certificate
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from terrella.core import untrusted
from terrella.core.config import load
from terrella.core.configurable import class_name
from terrella.core.errors import ConfigError, StoreError, TerrellaError
from terrella.core.files import read_json_lines
from terrella.core.integrity import SEAL, read_sealed
from terrella.core.run_folder import MANIFEST, SPEC, check_result, read_manifest
from terrella.core.world import World
from terrella.data.row_journal import SUFFIX, read_rows, row_files
from terrella.data.store import EpisodeStore, read_store_manifest
from terrella.trust.certificate import Certificate
from terrella.world_models.certified import DATA, read_certificate

logger = logging.getLogger("terrella")

Kind = Literal[
    "store", "rlvr", "world model", "video model", "arm", "evaluation", "reproduction", "run"
]
"""A `run` is any other folder with a manifest that holds a config."""
KIND_BY_CLASS: dict[str, Kind] = {
    "Collect": "store",
    "Rlvr": "rlvr",
    "TrainWorldModel": "world model",
    "VideoModel": "video model",
    "Spa": "arm",
    "AgentEvaluation": "evaluation",
    "WorldModelEvaluation": "evaluation",
}
"""The kind of a run by the class that its config builds."""
MEASURED_ONLY = ("PageModel", "TextGameModel", "VideoModel")
"""What `train-world-model` also makes, and `certify` does not take."""
STRANGE = "its manifest holds strange values: get it from its author again, or leave it out"
TABLE_AGAIN = "run the same `terrella reproduce` again: the table is written again"


@dataclass(frozen=True)
class Run:
    """A finished run folder."""

    folder: Path
    kind: Kind
    manifest: Mapping[str, Any]
    """Of a pipeline, of an episode store, or the table of a reproduction."""
    given_world: World.Config | None = None
    """The world that the caller names, in place of the manifest's."""

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @property
    def config(self) -> Mapping[str, Any]:
        """The config as it was dumped; empty if the folder holds none."""
        return dict(self.manifest.get("config", {}))

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The result of the pipeline as plain JSON; empty for a store and a reproduction."""
        return dict(self.manifest.get("metrics", {}))

    @cached_property
    def world(self) -> World.Config | None:
        """The config of the world, or None if it cannot be loaded here; see `load_world`."""
        try:
            return self.given_world or self.load_world()
        except TerrellaError:
            return None

    def load_world(self, named: type[World] | None = None) -> World.Config:
        """The config of the world, without what belongs to the machine that wrote it.

        A run over families of a world has what they share, and a run of several worlds has the
        `named` one, else the first. The error says why there is none: it comes from a package that
        is not installed, or uses a program that only the command line may start, by naming this
        world (`named`).
        """
        part = world_part(self.config, named) if named else self.config
        data = part.get("world") or _shared_world(self.config.get("families"), named)
        config = load(data, named=(named,) if named else ())
        if not isinstance(config, World.Config):
            raise ConfigError(self.name, "its manifest names no world")
        return config

    @cached_property
    def curve(self) -> list[dict[str, Any]]:
        """Training metrics by step; empty if nothing was trained with rewards."""
        path = self.folder / "curve.jsonl"
        if not path.exists():
            return []
        check_result(path)
        return read_json_lines(path)

    @cached_property
    def store(self) -> EpisodeStore | None:
        """The episodes of the run, if any: its own, or those of its first subfolder with some."""
        subfolders = sorted(path for path in self.folder.iterdir() if path.is_dir())
        for folder in (self.folder, *subfolders):
            if _is_store(folder):
                return EpisodeStore.open(folder)
        return None

    @cached_property
    def certificate(self) -> Certificate | None:
        """The certificate of the model, if `terrella certify` wrote one.

        It is void unless it was made for the model and the data in this folder.
        """
        return read_certificate(self.folder)

    @cached_property
    def token_files(self) -> list[Path]:
        """Recorded training tokens, one file per recorded step."""
        paths = sorted((self.folder / "model-rlvr" / "tokens").glob("step-*.jsonl"))
        for path in paths:
            check_result(path)
        return paths

    @cached_property
    def evaluated_rows(self) -> dict[str, list[dict[str, Any]]]:
        """Rows of an evaluation by the file's name, one for each world."""
        if self.kind != "evaluation":
            return {}
        files = row_files(self.folder / "rows")
        for path in files:
            check_result(path)
        return {path.name.removesuffix(SUFFIX): read_rows(path) for path in files}


def world_part(config: Mapping[str, Any], named: type[World]) -> Mapping[str, Any]:
    """Where a run's config has the named world and its limits: itself, or one of `others`.

    Of several worlds of this class the first; without any, the config itself.
    """
    others = config.get("others")
    parts = [config, *(others if isinstance(others, list) else ())]
    name = class_name(named)
    has_it = (
        part for part in parts if isinstance(part, Mapping) and _played(part).get("class") == name
    )
    return next(has_it, config)


def warn_of_another_world(folder: Path, world: World.Config) -> None:
    """Say so where a run's manifest names worlds, and none of them is of this one's class."""
    kinds = sorted(_world_classes(read_run(folder).config))
    asked = class_name(world.real.owner)
    if kinds and asked not in kinds:
        names = " and ".join(map(_short, kinds))
        manifest = folder / MANIFEST
        told = (
            "the model was fitted to %s (%s), not to %s: what it says of that may be worth nothing"
        )
        logger.warning(told, names, manifest, _short(asked))


def _world_classes(value: Any) -> set[str]:
    """Classes of the worlds inside a config; of imagined ones those of the real worlds in them."""
    found: set[str] = set()
    if isinstance(value, Mapping):
        if isinstance(value.get("world"), Mapping):
            found.add(str(_played(value).get("class", "")))
        families = value.get("families")
        listed = families.values() if isinstance(families, Mapping) else ()
        found |= {str(each.get("class", "")) for each in listed if isinstance(each, Mapping)}
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            found |= _world_classes(each)
    return found - {""}


def _short(world_class: str) -> str:
    """`terrella.worlds.frozen_lake.env:FrozenLake` is `frozen_lake`."""
    return world_class.partition(":")[0].removeprefix("terrella.worlds.").partition(".")[0]


def _played(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The world of a part; of an imagined one the real world in it."""
    inner: Mapping[str, Any] = part
    while isinstance(inner.get("world"), Mapping):
        inner = inner["world"]
    return inner


def _shared_world(families: Any, named: type[World] | None) -> dict[str, Any]:
    """What a run's families of the named world have in common; the rest are the world's defaults.

    Families of one world differ in what they draw from, and agree in what an episode is.
    """
    listed = families.values() if isinstance(families, Mapping) else ()
    configs = [each for each in listed if isinstance(each, Mapping)]
    same = [each for each in configs if named and each.get("class") == class_name(named)]
    first, *others = same or [{}]
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }


def _is_store(folder: Path) -> bool:
    if not (folder / MANIFEST).exists():
        return False
    manifest = read_json(folder / MANIFEST)
    if isinstance(manifest, dict) and SEAL in manifest:
        manifest = read_sealed(folder / MANIFEST)  # a damaged store is not overlooked
    return isinstance(manifest, dict) and "parts" in manifest


def read_json(path: Path) -> Any:
    """Read a JSON file; raise a `ConfigError` that names it if it cannot be read."""
    try:
        return untrusted.read_json(path)
    except StoreError as error:
        raise ConfigError(
            str(path), error.what, "name a folder that a command of terrella wrote"
        ) from error


def read_run(folder: Path) -> Run:
    """Read the run in a folder; one that is unfinished or from before run schema 2 is refused."""
    if not folder.is_dir():
        raise ConfigError(str(folder), "there is no such folder", "check the path")
    if (folder / "table.json").exists():
        table = read_sealed(folder / "table.json", TABLE_AGAIN)
        _refuse_strange(folder, table)
        return Run(folder, "reproduction", table)
    if not (folder / MANIFEST).exists():
        if (folder / SPEC).exists():
            raise ConfigError(
                str(folder), "was begun, not finished", "run the same command again: it resumes"
            )
        raise ConfigError(str(folder), f"holds no {MANIFEST}", "check the path")
    manifest = read_json(folder / MANIFEST)
    is_store = isinstance(manifest, dict) and "parts" in manifest
    manifest = read_store_manifest(folder) if is_store else asdict(read_manifest(folder))
    _refuse_strange(folder, manifest)
    class_name = str(manifest.get("config", {}).get("class", "")).rpartition(":")[2]
    if not class_name:
        raise ConfigError(
            str(folder), "holds a manifest without a config", "name a folder that a command wrote"
        )
    kind = "store" if "parts" in manifest else KIND_BY_CLASS.get(class_name, "run")
    return Run(folder, kind, manifest)


def _refuse_strange(folder: Path, manifest: Any) -> None:
    """Everything that shows a run takes its config and its metrics for tables."""
    inner = [manifest.get(key, {}) for key in ("config", "metrics")]
    if not all(isinstance(each, Mapping) for each in inner):
        raise StoreError(str(folder), "its config or its metrics are no table", STRANGE)


def require_world_model(folder: Path) -> None:
    """Refuse a folder that holds no model with recorded steps of its world, by what it is."""
    run = read_run(folder)
    if run.kind == "world model" or (folder / DATA).is_dir():
        return
    names = {"store": "an episode store", "reproduction": "a comparison"}
    class_name = str(run.config.get("class", "")).rpartition(":")[2]
    if class_name in MEASURED_ONLY:
        raise ConfigError(
            str(folder),
            f"is a run of {class_name}: such a model is measured, not certified",
            "its manifest.json has what was measured; a certificate, and planning and serving with "
            "it, are for runs of TrainWorldModel, such as that of lake_model",
        )
    raise ConfigError(
        str(folder),
        f"is {names.get(run.kind, f'a run of {class_name}')}, not a world model",
        "name the folder that train-world-model wrote",
    )
