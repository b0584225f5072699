"""The plan of a run: one JSON file that every process of the cluster reads to know worlds, questions and settings.

No code travels: the file names the stage's config, and a process builds the stage from it (`core.config.load`). Any
stage that can make a codec, a driver and questions can run on verl.
    Plan(stage=dump(config), path=search_path()).write(file); Plan.read(file).source().tasks(Split.TRAIN)
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from terrella.core.config import load
from terrella.core.protocols import Codec, Task
from terrella.core.types import Split
from terrella.data.store import write_atomic
from terrella.engines.episodes.driver import Driver


class EpisodeSource(Protocol):
    """What a stage must offer so that its episodes can be played anywhere."""

    config: Any

    def codec(self, tokenizer: Any) -> Codec:
        """How observations become tokens."""
        ...

    def driver(self, codec: Codec) -> Driver:
        """Who plays."""
        ...

    def tasks(self, split: Split) -> Callable[[int], Task]:
        """Question i of a split."""
        ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all processes of a run agree on."""

    stage: dict[str, Any]
    """The stage's dumped config."""
    path: list[str]
    """Where the command looked for modules: a user's own world may lie in any folder."""

    def write(self, file: Path) -> None:
        """Whole or absent."""
        write_atomic(file, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, file: str | Path) -> Plan:
        """As written."""
        return cls(**json.loads(Path(file).read_text("utf-8")))

    def source(self) -> EpisodeSource:
        """The stage itself, in this process."""
        sys.path += [folder for folder in self.path if folder not in sys.path]
        for name in _owners(self.stage):
            importlib.import_module(name)
        source: EpisodeSource = load(self.stage).build()
        return source


def _owners(value: Any) -> list[str]:
    """Modules of all configs inside a dumped one: `load` only takes those that are imported."""
    if isinstance(value, list):
        return [name for item in value for name in _owners(item)]
    if not isinstance(value, dict):
        return []
    mine = [value["class"].split(":")[0]] if isinstance(value.get("class"), str) else []
    return mine + [name for item in value.values() for name in _owners(item)]
