"""Collect: play episodes of a world with a policy into an episode store. Killed and run again, it resumes.

Episode i is a pure function of the config and i. Chunks of consecutive episodes are played whole and written whole,
here or on Ray actors, so that a run that was killed, resumed or fanned out leaves the very bytes of one that was not.
    config = Collect.Config(world=FrozenLake.Config(), policy=Random.Config(), out=Path("lake"), transitions=100_000)
    manifest = Collect(config).run(progress)      # again with transitions=200_000: the store is extended
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

from terrella.core.config import Configurable, dump
from terrella.core.errors import ConfigError, StoreError
from terrella.core.protocols import Progress
from terrella.core.stats import wilson
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data import store
from terrella.data.parts import Counts, Part, decode_part, describe_part, encode_part, episode_lengths
from terrella.engines.fanout import fan_out
from terrella.show.progress import make_progress, show_figures
from terrella.stages.collect_chunk import LOOK_AFTER, MAX_EPISODES, Watch, play_chunk

logger = logging.getLogger("terrella")

SHOW_EVERY = 0.2
"""Seconds between two looks at a chunk that is being played here."""


class Collect(Configurable):
    """The stage. `run` returns the manifest, `summary` the figures for a person."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """What to play, how much of it, and where it goes."""

        world: World.Config
        policy: Configurable.Config
        out: Path
        transitions: int = 0
        """Stop with the episode that reaches this many transitions; or give `episodes`."""
        episodes: int = 0
        seed: int = 0
        split: Split = Split.TRAIN
        chunk_episodes: int = 2_000
        """What is played, written, and lost by a kill at once. Fewer for slow worlds and for frames."""
        workers: int = 0
        """0 plays in this process, n > 0 on n Ray actors."""

        # Where, how fast and how far, not what: a run may be resumed with other workers and to a further end.
        not_planned: ClassVar[tuple[str, ...]] = ("out", "workers", "transitions", "episodes")

        def __post_init__(self) -> None:
            """Refuse what has no meaning."""
            if min(self.transitions, self.episodes) < 0 or (self.transitions > 0) == (self.episodes > 0):
                raise ConfigError("collect", "wants exactly one of `transitions` and `episodes`, above 0")
            if self.chunk_episodes < 1 or self.workers < 0:
                raise ConfigError("collect", "chunk_episodes must be at least 1, workers at least 0")
            if not 0 <= self.seed < 2**31 or self.episodes > MAX_EPISODES:
                raise ConfigError("collect", "seed must lie in [0, 2^31), episodes in [0, 2^32]")

    config: Config

    def __init__(self, config: Config) -> None:
        """Build world and policy once, so that a config that cannot be built fails before anything is written."""
        super().__init__(config)
        config.world.build().close()
        config.policy.build()
        if config.workers and "__main__" in _modules_of(dump(config)):
            raise ConfigError("collect", "a worker cannot import a class of __main__", "put it in a module")
        self.done, self.played, self.seconds, self.losses = Counts(), 0, 0.0, 0

    def run(self, progress: Progress) -> dict[str, Any]:
        """Play what is missing and write the manifest; a store that is whole is left as it is."""
        folder, began, self.done, self.played, self.losses = self.config.out, time.monotonic(), Counts(), 0, 0
        with store.locked(folder):
            listed = store.EpisodeStore.open(folder) if (folder / store.MANIFEST).exists() else None
            whole = listed is not None and listed.manifest.get("target") == self._target
            plan = store.settle_plan(folder, self._plan, ignore=("versions",) if whole else ())
            known = listed.parts if listed is not None else ()
            store.remove_leftovers(folder, known)
            if listed is not None and whole:
                self.done = sum((part.counts for part in known), Counts())
                return dict(listed.manifest)
            parts = list(self._parts(plan, {part.name: part for part in known}, progress))
            manifest = store.finish(folder, parts, {**self._plan, "target": self._target})
        self.seconds = time.monotonic() - began
        return manifest

    def summary(self) -> list[tuple[str, str]]:
        """What a person wants to know at the end, as rows; the rate is that of this run."""
        done = self.done
        low, high = wilson(done.successes, done.judged)
        share = f"{done.successes / max(done.judged, 1):.4f}" if done.judged else "unknown"
        rows = [
            ("episodes", f"{done.episodes:,}"),
            ("transitions", f"{done.transitions:,}"),
            ("success", f"{share} [{low:.4f}, {high:.4f}] (95%, n={done.judged:,})"),
            ("masked", f"{done.episodes - done.judged:,}"),
            ("rate", f"{self.played / self.seconds:,.0f} transitions/s" if self.played else "nothing was left to play"),
        ]
        return rows + ([("workers lost", f"{self.losses}")] if self.losses else [])

    # --- what is asked --------------------------------------------------------------------------------------------

    @functools.cached_property
    def _plan(self) -> dict[str, Any]:
        """What the episodes are a function of."""
        config = {key: value for key, value in dump(self.config).items() if key not in self.config.not_planned}
        # Other versions may draw other numbers and write other bytes: a store holds one set of them.
        names = ("terrella", "numpy", "pyarrow", "gymnasium")
        return {"config": config, "versions": {name: version(name) for name in names}}

    @property
    def _target(self) -> dict[str, int]:
        config = self.config
        return {"transitions": config.transitions} if config.transitions else {"episodes": config.episodes}

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Which episodes (from, to) are played together; without end when only the transitions are known."""
        size, end = self.config.chunk_episodes, self.config.episodes or MAX_EPISODES
        return ((first, min(first + size, end)) for first in range(0, end, size))

    # --- playing --------------------------------------------------------------------------------------------------

    def _parts(self, plan: str, known: Mapping[str, Part], progress: Progress) -> Iterator[Part]:
        """The parts of the store in order: those that are there, and those that are played now."""
        there = store.parts_there(self.config.out)
        self._refuse_to_shrink(there, self.config.episodes or MAX_EPISODES)
        progress.phase("collect", self.config.transitions or self.config.episodes)
        missing = (chunk for chunk in self._chunks() if chunk not in there)
        with contextlib.closing(self._played(missing, plan, progress)) as played:
            for chunk in self._chunks():
                part = self._recall(there[chunk], plan, known) if chunk in there else next(played)
                self.done += part.counts
                yield part
                if chunk not in there:
                    self._report(progress, self.done.episodes, self.done.transitions)
                if self.config.transitions and self.done.transitions >= self.config.transitions:
                    break
        _refuse_broken(self.done, str(self.config.out))
        self._refuse_to_shrink(there, self.done.episodes)

    def _played(self, chunks: Iterator[tuple[int, int]], plan: str, progress: Progress) -> Generator[Part]:
        """Play chunks, here or on workers; each is written as soon as its turn comes."""
        self._report(progress, self.done.episodes, self.done.transitions)
        player: Callable[[Any], bytes] = play_chunk
        if not self.config.workers:
            player = functools.partial(play_chunk, watch=self._watch(progress))
        items = ((f"episodes {a:,} to {b:,}", self._spec(a, b, plan)) for a, b in chunks)
        results = fan_out(player, items, workers=self.config.workers, on_loss=self._lost)
        with contextlib.closing(results):
            for data in results:
                counts = describe_part(data).counts
                for seen in (counts, self.done + counts):
                    if seen.episodes >= LOOK_AFTER:
                        _refuse_broken(seen, str(self.config.out))
                part = store.write_part(self.config.out, self._trimmed(data, counts, plan))
                self.played += part.counts.transitions
                yield part

    def _spec(self, first: int, last: int, plan: str) -> dict[str, Any]:
        config = self._plan["config"]
        # What is still missing now is at least what this chunk can be asked for: it may stop there.
        limit = self.config.transitions - self.done.transitions if self.config.transitions else None
        chunk = {"first": first, "last": last, "limit": limit, "plan": plan}
        return {"config": config, "modules": _modules_of(config), **chunk}

    def _trimmed(self, data: bytes, counts: Counts, plan: str) -> bytes:
        """The part, cut after the episode that reaches the target."""
        wanted = self.config.transitions - self.done.transitions
        if not self.config.transitions or counts.transitions < wanted:
            return data
        lengths = episode_lengths(data)
        totals = itertools.accumulate(lengths)
        keep = next(number for number, total in enumerate(totals, start=1) if total >= wanted)
        return data if keep == len(lengths) else encode_part(decode_part(data)[:keep], self.done.episodes, plan)

    def _recall(self, path: Path, plan: str, known: Mapping[str, Part]) -> Part:
        """A part that an earlier run wrote; it must not reach beyond what is asked now."""
        part = known.get(path.name) or describe_part(path, plan)
        wanted = self.config.transitions - self.done.transitions
        if self.config.transitions and part.counts.transitions >= wanted:
            data = path.read_bytes()
            kept = describe_part(self._trimmed(data, part.counts, plan)).counts.episodes
            self._refuse_to_shrink({(part.first, part.first + part.counts.episodes): path}, part.first + kept)
        return part

    def _refuse_to_shrink(self, there: Mapping[tuple[int, int], Path], asked: int) -> None:
        end = max((last for _, last in there), default=0)
        if end > asked:
            what = f"already holds {end:,} episodes, which is more than {self._target} asks for"
            raise StoreError(str(self.config.out), what, "ask for more, or choose another folder")

    # --- telling --------------------------------------------------------------------------------------------------

    def _watch(self, progress: Progress) -> Watch:
        shown = time.monotonic()

        def watch(episodes: int, transitions: int) -> None:
            nonlocal shown
            if time.monotonic() - shown > SHOW_EVERY:
                shown = time.monotonic()
                self._report(progress, self.done.episodes + episodes, self.done.transitions + transitions)

        return watch

    def _report(self, progress: Progress, episodes: int, transitions: int) -> None:
        done, figures = self.done, dict[str, float]()
        if done.judged:
            figures = {"success": done.successes / done.judged, "masked": done.episodes - done.judged}
        if self.losses:
            figures["lost"] = self.losses
        progress.advance(transitions if self.config.transitions else episodes, **figures)

    def _lost(self, line: str) -> None:
        self.losses += 1
        logger.warning(line)


def run(config: Collect.Config, progress: Progress | None = None) -> dict[str, Any]:
    """Collect with a display (made here unless given) and show the summary; returns the manifest."""
    stage = Collect(config)
    with make_progress() if progress is None else contextlib.nullcontext(progress) as shown:
        manifest = stage.run(shown)
    show_figures(f"collected into {config.out}", stage.summary())  # after the display has left the terminal
    return manifest


def _refuse_broken(counts: Counts, where: str) -> None:
    if counts.broken * 2 > counts.episodes:
        what = f"{counts.broken} of {counts.episodes} episodes broke; the first: {counts.first_error}"
        raise StoreError(where, what, "try `terrella check` and `terrella play` on this world and policy")
    if counts.episodes >= LOOK_AFTER and not counts.transitions:
        raise StoreError(where, f"{counts.episodes} episodes without a single transition", "try `terrella play`")


def _modules_of(dumped: Any) -> list[str]:
    """The modules of all classes that a dumped config names."""
    if not isinstance(dumped, Mapping | list):
        return []
    inner = dumped if isinstance(dumped, list) else dumped.values()
    found = {module for value in inner for module in _modules_of(value)}
    if "class" in dumped and isinstance(dumped, Mapping):
        found.add(str(dumped["class"]).split(":")[0])
    return sorted(found)
