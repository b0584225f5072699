"""What all importers share: a source, a target, what identifies a source, and a summary."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.config import Configurable, Local
from terrella.core.integrity import content_sha256
from terrella.core.protocols import Progress
from terrella.core.run_folder import run_spec

Summary = list[tuple[str, str]]


class Importer(Configurable, abc.ABC):
    """Reads a foreign data set and writes a folder of ours; the same call continues."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        source: Local[Path]
        out: Local[Path]

    config: Config

    @abc.abstractmethod
    def run(self, progress: Progress) -> Summary:
        """Import what is missing; returns what a person wants to know at the end."""

    def spec(self, files: Iterable[Path]) -> dict[str, Any]:
        """The settings and the files of the source, by path and size: others are another import."""
        source = self.config.source
        # Not by name: LeRobot has many files of one name. A source may be a file itself.
        sizes = {path.relative_to(source).as_posix(): path.stat().st_size for path in files}
        return {
            **run_spec(self.config, ("source", "out")),
            "source": source.resolve().name,
            "source_files": content_sha256(sizes),
        }


def size_text(count: int) -> str:
    """A number of bytes: `1.2 MB`."""
    number, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:,.0f} {units[0]}" if units[0] == "bytes" else f"{number:,.1f} {units[0]}"
