"""Recordings of robots and web agents into an episode store.

ImportLeRobot(ImportLeRobot.Config(source=Path("pusht"), out=Path("runs/pusht"))).run(progress)
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.core.config import Recorded
from terrella.core.errors import StoreError
from terrella.core.integrity import content_sha256, file_sha256
from terrella.core.protocols import Progress
from terrella.core.stats import wilson
from terrella.core.types import Episode, Frames, Observation
from terrella.data.lerobot import lerobot_length, read_lerobot
from terrella.data.parts import EpisodeCounts
from terrella.data.recorded_store import fill_store
from terrella.data.recorded_traces import trace_episode
from terrella.data.rlds import read_rlds, shards_of
from terrella.data.store import EpisodeStore
from terrella.data.tfrecord import count_records
from terrella.data.webrl_formats import read_trace, score_file, trace_files
from terrella.pipelines.import_data.base import Importer, Summary, size_text


class ImportEpisodes(Importer):
    """An importer of episodes; subclasses say how they are read."""

    @abc.abstractmethod
    def files(self) -> list[Path]:
        """The files of the source; an error if there are none."""

    @abc.abstractmethod
    def episodes(self, first: int) -> Iterator[Episode]:
        """The episodes from this number on."""

    @abc.abstractmethod
    def count(self) -> int:
        """How many episodes the source has, as far as it says; 0 if it does not."""

    def run(self, progress: Progress) -> Summary:
        files = self.files()
        progress.phase("import", self.count())

        def show(counts: EpisodeCounts) -> None:
            progress.advance(counts.episodes, transitions=counts.transitions)

        fill_store(self.config.out, self.spec(files), self.episodes, show=show)
        return store_summary(EpisodeStore.open(self.config.out))


class ImportRlds(ImportEpisodes):
    """Open X-Embodiment: TFRecord shards with an episode in each record."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ImportEpisodes.Config):
        image: Recorded[str] = "observation/image"
        actions: Recorded[tuple[str, ...]] = ("action",)
        """Columns of numbers that together are the action, such as action/world_vector."""
        size: tuple[int, int] | None = None
        """Height and width of the stored frames; as they are unless given."""

    config: Config

    def files(self) -> list[Path]:
        return shards_of(self.config.source)

    def count(self) -> int:
        return sum(map(count_records, self.files()))

    def episodes(self, first: int) -> Iterator[Episode]:
        config = self.config
        return read_rlds(
            config.source, image=config.image, actions=config.actions, size=config.size, first=first
        )


class ImportLeRobot(ImportEpisodes):
    """LeRobot v3.0: Parquet tables and videos."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ImportEpisodes.Config):
        camera: Recorded[str | None] = None
        """The key of the video; it is needed if the dataset has several."""
        size: tuple[int, int] | None = None

    config: Config

    def files(self) -> list[Path]:
        return sorted(path for path in self.config.source.rglob("*") if path.is_file())

    def count(self) -> int:
        return lerobot_length(self.config.source)

    def episodes(self, first: int) -> Iterator[Episode]:
        config = self.config
        return read_lerobot(config.source, camera=config.camera, size=config.size, first=first)


class ImportTraces(ImportEpisodes):
    """WebRL: a folder with `traces/*.jsonl` and `actions/*.json`."""

    def files(self) -> list[Path]:
        found = trace_files(self.config.source)
        if not found:
            what = "has no traces/*.jsonl"
            raise StoreError(str(self.config.source), what, "see docs/webrl.md for the layout")
        return found

    def spec(self, files: Iterable[Path]) -> dict[str, Any]:
        """The scores, too: they lie beside the traces, and another score has the same size."""
        files = list(files)
        scores = [path for path in map(score_file, files) if path.is_file()]
        hashes = {path.name: file_sha256(path) for path in scores}
        return {**super().spec(files), "scores": content_sha256(hashes)}

    def count(self) -> int:
        return len(self.files())

    def episodes(self, first: int) -> Iterator[Episode]:
        source = f"webrl/{self.config.source.resolve().name}"
        for number, path in enumerate(self.files()[first:], start=first):
            yield trace_episode(read_trace(path), source=source, number=number)


def store_summary(store: EpisodeStore) -> Summary:
    """What a store of recordings holds."""
    counts = sum((part.counts for part in store.parts), EpisodeCounts())
    first = next(store.episodes())
    rows = [
        ("episodes", f"{counts.episodes:,}"),
        ("transitions", f"{counts.transitions:,}"),
        ("observations", _kind(first.first)),
    ]
    if first.transitions:
        rows.append(("first action", first.transitions[0].action[:80]))
    if counts.judged:
        low, high = wilson(counts.successes, counts.judged)
        share = counts.successes / counts.judged
        rows.append(("success", f"{share:.4f} [{low:.4f}, {high:.4f}] (n={counts.judged:,})"))
    rows += [(f"masked: {cause}", f"{count:,}") for cause, count in counts.masked.items()]
    return [*rows, ("on disk", size_text(sum(part.bytes for part in store.parts)))]


def _kind(observation: Observation) -> str:
    if isinstance(observation, Frames):
        _, height, width, channels = observation.shape
        return f"frames of {height} x {width} x {channels}"
    return f"{observation.kind.value}; the first has {len(observation.text):,} characters"
