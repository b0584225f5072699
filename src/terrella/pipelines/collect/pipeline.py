"""`terrella collect WORLD`: play episodes of a world with a policy into an episode store.

Episode i is a pure function of the config and i. Chunks of consecutive episodes are played whole
and written whole, here or on Ray actors, so a run that was killed, resumed or distributed leaves
the same bytes as one that was not. A larger target extends the store.
    config = Collect.Config(
        world=FrozenLake.Config(), policy=Random.Config(), out=Path("lake"), transitions=100_000
    )
    manifest = Collect(config).run(progress)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from terrella.core.config import Configurable, Local, dump
from terrella.core.errors import ConfigError, StoreError
from terrella.core.files import locked
from terrella.core.protocols import Progress
from terrella.core.run_folder import MANIFEST, SPEC, check_spec, run_spec
from terrella.core.stats import wilson
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data import store
from terrella.data.parts import (
    EpisodeCounts,
    Part,
    decode_part,
    describe_part,
    encode_part,
    episode_lengths,
)
from terrella.pipelines.collect.chunk import (
    LOOK_AFTER,
    MAX_EPISODES,
    ChunkSpec,
    OnEpisode,
    play_chunk,
)
from terrella.rollout.fanout import fan_out
from terrella.show.progress import make_progress, show_metrics

logger = logging.getLogger("terrella")

SHOW_EVERY = 0.2
"""Seconds between two updates of the display while a chunk is played in this process."""
PACKAGES = ("terrella", "numpy", "pyarrow", "gymnasium")
"""Other versions may draw other numbers and write other bytes: a store holds one set of them."""


class Collect(Configurable):
    """Fills an episode store. It is not a `Pipeline`: a store has a manifest of its own.

    `run` returns the manifest, `summary` the metrics of the run.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        world: World.Config
        policy: Configurable.Config
        out: Local[Path]
        transitions: int = 0
        """Stop with the episode that reaches this many transitions; or give `episodes`."""
        episodes: int = 0
        seed: int = 0
        split: Split = Split.TRAIN
        chunk_episodes: int = 2_000
        """Episodes that are written together, and lost by a kill together.

        Set fewer for slow worlds and for frames.
        """
        workers: Local[int] = 0
        """0 plays in this process, n > 0 on n Ray actors."""

        def __post_init__(self) -> None:
            targets = (self.transitions, self.episodes)
            if min(targets) < 0 or sum(target > 0 for target in targets) != 1:
                raise ConfigError(
                    "collect", "needs exactly one of `transitions` and `episodes`, above 0"
                )
            if self.chunk_episodes < 1 or self.workers < 0:
                raise ConfigError(
                    "collect", "chunk_episodes must be at least 1, workers at least 0"
                )
            if not 0 <= self.seed < 2**31 or self.episodes > MAX_EPISODES:
                raise ConfigError("collect", "seed must be in [0, 2^31), episodes in [0, 2^32]")

    config: Config
    ignored: ClassVar[tuple[str, ...]] = ("out", "workers", "transitions", "episodes")
    """A run may be resumed with other workers and with a larger target."""

    def __init__(self, config: Config) -> None:
        """Build world and policy once: a config that cannot be built fails before any writing."""
        super().__init__(config)
        config.world.build().close()
        config.policy.build()
        if config.workers and "__main__" in _modules_of(dump(config)):
            raise ConfigError(
                "collect", "a worker cannot import a class of __main__", "put it in a module"
            )
        self.done = EpisodeCounts()
        """What the store holds so far."""
        self.played = 0
        """Transitions that this run played."""
        self.seconds = 0.0
        self.losses = 0
        """Workers that died."""
        self._broken_parts: list[Path] = []
        """Parts with episodes that broke, without those that a manifest lists."""

    def run(self, progress: Progress) -> dict[str, Any]:
        """Play what is missing and write the manifest; a store that is whole is left as it is."""
        folder = self.config.out
        began = time.monotonic()
        self.done = EpisodeCounts()
        self.played = 0
        self.losses = 0
        with locked(folder):
            known = _known_manifest(folder)
            listed = store.listed_parts(folder, known) if known else []
            existing = store.intact_parts(folder)
            intact = {path.name for path in existing.values()}
            whole = known.get("target") == self._target and {p.name for p in listed} <= intact
            spec_hash = check_spec(folder, self._spec, ignore=("versions",) if whole else ())
            store.remove_leftovers(folder, listed)
            if whole:
                self.done = sum((part.counts for part in listed), EpisodeCounts())
                return known
            existing = {chunk: path for chunk, path in existing.items() if path.exists()}
            reused = {part.name: part for part in listed}
            parts = list(self._parts(spec_hash, existing, reused, progress))
            manifest = store.finish(folder, parts, {**self._spec, "target": self._target})
        self.seconds = time.monotonic() - began
        return manifest

    def summary(self) -> list[tuple[str, str]]:
        """What a person wants to know at the end, as rows of a table; the rate is this run's."""
        done = self.done
        low, high = wilson(done.successes, done.judged)
        share = f"{done.successes / done.judged:.4f}" if done.judged else "unknown"
        rate = "nothing was left to play"
        if self.played:
            rate = f"{self.played / self.seconds:,.0f} transitions/s"
        rows = [
            ("episodes", f"{done.episodes:,}"),
            ("transitions", f"{done.transitions:,}"),
            ("success", f"{share} [{low:.4f}, {high:.4f}] (95%, n={done.judged:,})"),
            ("masked", f"{done.episodes - done.judged:,}"),
            ("rate", rate),
        ]
        return rows + ([("workers lost", f"{self.losses}")] if self.losses else [])

    def masked_line(self) -> str:
        """How many episodes are masked, and why; empty if none is."""
        masked = {cause: n for cause, n in self.done.masked.items() if n}
        if not masked:
            return ""
        causes = ", ".join(f"{n:,} {cause}" for cause, n in sorted(masked.items()))
        why = causes if len(masked) > 1 else next(iter(masked))
        if self.done.first_error:
            why += f"; the first: {self.done.first_error.splitlines()[0]}"
        return f"masked: {sum(masked.values()):,} ({why})"

    # --- spec, target and chunks ------------------------------------------------------------------

    @functools.cached_property
    def _spec(self) -> dict[str, Any]:
        """What the episodes are a function of."""
        spec = run_spec(self.config, self.ignored)
        return {**spec, "versions": {name: version(name) for name in PACKAGES}}

    @property
    def _target(self) -> dict[str, int]:
        if self.config.transitions:
            return {"transitions": self.config.transitions}
        return {"episodes": self.config.episodes}

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Episodes (from, to) that are played together; endless for a target of transitions."""
        size = self.config.chunk_episodes
        end = self.config.episodes or MAX_EPISODES
        return ((first, min(first + size, end)) for first in range(0, end, size))

    # --- playing ----------------------------------------------------------------------------------

    def _parts(
        self,
        spec_hash: str,
        existing: Mapping[tuple[int, int], Path],
        listed: Mapping[str, Part],
        progress: Progress,
    ) -> Iterator[Part]:
        """The parts of the store in order: those that exist, and those that are played now."""
        self._refuse_to_shrink(existing, self.config.episodes or MAX_EPISODES)
        self._broken_parts.clear()
        progress.phase("collect", self.config.transitions or self.config.episodes)
        missing = (chunk for chunk in self._chunks() if chunk not in existing)
        with contextlib.closing(self._play_parts(missing, spec_hash, progress)) as played:
            for chunk in self._chunks():
                if chunk in existing:
                    part = self._reuse(existing[chunk], spec_hash, listed)
                else:
                    part = next(played)
                self.done += part.counts
                if part.name not in listed and _has_broken(part.counts):
                    self._broken_parts.append(self.config.out / part.name)
                yield part
                if chunk not in existing:
                    self._report(progress, self.done.episodes, self.done.transitions)
                if self.config.transitions and self.done.transitions >= self.config.transitions:
                    break
        self._refuse_broken(self.done)
        self._refuse_to_shrink(existing, self.done.episodes)

    def _play_parts(
        self, chunks: Iterator[tuple[int, int]], spec_hash: str, progress: Progress
    ) -> Generator[Part]:
        """Play chunks, here or on workers, and write each of them as soon as its turn comes."""
        self._report(progress, self.done.episodes, self.done.transitions)
        player: Callable[[Any], bytes] = play_chunk
        if not self.config.workers:
            player = functools.partial(play_chunk, on_episode=self._reporter(progress))
        items = (
            (f"episodes {first:,} to {last:,}", self._chunk_spec(first, last, spec_hash))
            for first, last in chunks
        )
        results = fan_out(player, items, workers=self.config.workers, on_loss=self._lost)
        with contextlib.closing(results):
            for data in results:
                counts = describe_part(data).counts
                for total in (counts, self.done + counts):
                    if total.episodes >= LOOK_AFTER:
                        self._refuse_broken(total)
                part = store.write_part(self.config.out, self._trimmed(data, counts, spec_hash))
                self.played += part.counts.transitions
                yield part

    def _chunk_spec(self, first: int, last: int, spec_hash: str) -> ChunkSpec:
        config = self._spec["config"]
        # At most what is still missing now can be asked of this chunk: it may end there.
        limit = self.config.transitions - self.done.transitions if self.config.transitions else None
        return ChunkSpec(
            config=config,
            modules=_modules_of(config),
            first=first,
            last=last,
            limit=limit,
            spec_hash=spec_hash,
        )

    def _trimmed(self, data: bytes, counts: EpisodeCounts, spec_hash: str) -> bytes:
        """The part, cut after the episode that reaches the target."""
        wanted = self.config.transitions - self.done.transitions
        if not self.config.transitions or counts.transitions < wanted:
            return data
        lengths = episode_lengths(data)
        totals = itertools.accumulate(lengths)
        keep = next(number for number, total in enumerate(totals, start=1) if total >= wanted)
        if keep == len(lengths):
            return data
        return encode_part(decode_part(data)[:keep], self.done.episodes, spec_hash)

    def _reuse(self, path: Path, spec_hash: str, listed: Mapping[str, Part]) -> Part:
        """A part that an earlier run wrote; it must not reach beyond the target of this run."""
        part = listed.get(path.name) or describe_part(path, spec_hash)
        wanted = self.config.transitions - self.done.transitions
        if self.config.transitions and part.counts.transitions >= wanted:
            trimmed = self._trimmed(path.read_bytes(), part.counts, spec_hash)
            end = part.first + describe_part(trimmed).counts.episodes
            self._refuse_to_shrink({(part.first, part.first + part.counts.episodes): path}, end)
        return part

    def _refuse_broken(self, counts: EpisodeCounts) -> None:
        """Stop if most episodes broke; those that did are not kept, so that they are played again.

        Parts that a manifest lists stay.
        """
        try:
            _refuse_broken(counts, str(self.config.out))
        except StoreError:
            for path in self._broken_parts:
                path.unlink(missing_ok=True)
            raise

    def _refuse_to_shrink(self, existing: Mapping[tuple[int, int], Path], wanted: int) -> None:
        end = max((last for _, last in existing), default=0)
        if end > wanted:
            what = f"already holds {end:,} episodes, which is more than {self._target} asks for"
            raise StoreError(str(self.config.out), what, "ask for more, or choose another folder")

    # --- progress ---------------------------------------------------------------------------------

    def _reporter(self, progress: Progress) -> OnEpisode:
        """Reports a chunk that is being played, not more often than the display needs."""
        shown = time.monotonic()

        def report(episodes: int, transitions: int) -> None:
            nonlocal shown
            if time.monotonic() - shown > SHOW_EVERY:
                shown = time.monotonic()
                self._report(
                    progress, self.done.episodes + episodes, self.done.transitions + transitions
                )

        return report

    def _report(self, progress: Progress, episodes: int, transitions: int) -> None:
        done = self.done
        metrics: dict[str, float] = {}
        if done.judged:
            metrics["success"] = done.successes / done.judged
            metrics["masked"] = done.episodes - done.judged
        if self.losses:
            metrics["lost"] = self.losses
        progress.advance(transitions if self.config.transitions else episodes, **metrics)

    def _lost(self, line: str) -> None:
        self.losses += 1
        logger.warning(line)


def run(config: Collect.Config, progress: Progress | None = None) -> dict[str, Any]:
    """Collect with a display (made here unless given), show the summary, return the manifest."""
    collect = Collect(config)
    with make_progress() if progress is None else contextlib.nullcontext(progress) as display:
        manifest = collect.run(display)
    # After the display has left the terminal.
    show_metrics(f"collected into {config.out}", collect.summary())
    if line := collect.masked_line():
        logger.warning(line)
    return manifest


def _known_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an earlier run; empty if there is none, or if it is damaged.

    A damaged one is written again from the parts, whose names have their hashes.
    """
    if not (folder / MANIFEST).exists():
        return {}
    try:
        return store.read_store_manifest(folder)
    except StoreError as error:
        if error.what == store.NOT_A_STORE:
            raise StoreError(error.where, error.what, "choose another --out") from error
        if error.where != str(folder / MANIFEST) or not (folder / SPEC).exists():
            raise  # of another version
        logger.warning("%s: %s: it is written again", folder / MANIFEST, error.what)
        return {}


def _has_broken(counts: EpisodeCounts) -> bool:
    return counts.broken > 0 or not counts.transitions


def _refuse_broken(counts: EpisodeCounts, where: str) -> None:
    if counts.broken * 2 > counts.episodes:
        what = (
            f"{counts.broken} of {counts.episodes} episodes broke; the first: {counts.first_error}"
        )
        raise StoreError(
            where,
            what,
            "try `terrella check` and `terrella play` on this world and policy; when it is mended, "
            "the same command plays these episodes again",
        )
    if counts.episodes >= LOOK_AFTER and not counts.transitions:
        raise StoreError(
            where, f"{counts.episodes} episodes without a single transition", "try `terrella play`"
        )


def _modules_of(dumped: Any) -> list[str]:
    """The modules of all classes that a dumped config names."""
    if not isinstance(dumped, Mapping | list):
        return []
    inner = dumped if isinstance(dumped, list) else dumped.values()
    modules = {module for value in inner for module in _modules_of(value)}
    if "class" in dumped and isinstance(dumped, Mapping):
        modules.add(str(dumped["class"]).split(":")[0])
    return sorted(modules)
