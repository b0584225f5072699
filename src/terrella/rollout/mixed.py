"""Several worlds in one run: each task names its world, and metrics are reported for each.

Worlds take turns by their shares, so a batch holds groups of all of them. Each keeps its own
limits, codec, verifier and reward shaping; the model is one.
    source = mixed_source(WorldShare(name="lake", source=lake), WorldShare(name="sokoban",
        source=sokoban, share=3))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from terrella.core.config import Configurable, Recorded
from terrella.core.errors import ConfigError
from terrella.core.protocols import RolloutCodec, Sampler
from terrella.core.tokens import Task, TokenEpisode
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, Tasks, TaskSource


def split_by_share(total: int, shares: Mapping[str, int]) -> dict[str, int]:
    """How much of a total each name gets, in cycles: its share of each, the last one cut short."""
    cycle = [name for name, share in shares.items() for _ in range(share)]
    cycles, rest = divmod(total, len(cycle))
    return {name: cycles * share + cycle[:rest].count(name) for name, share in shares.items()}


@dataclass(frozen=True, kw_only=True)
class WorldShare(Configurable.Config):
    """A world of a mixed run: where its episodes come from, and how many of them there are."""

    name: Recorded[str]
    """Its name in tasks and metrics."""
    source: EpisodeSource
    share: int = 1
    """Tasks of each cycle through the worlds."""


@dataclass(frozen=True, kw_only=True)
class MixedTasks(TaskSource):
    """Tasks of several worlds by number, in cycles: all tasks of the first, then of the next."""

    worlds: tuple[WorldShare, ...]

    def counts(self, tasks: int) -> dict[str, int]:
        """How many of the first `tasks` are of each world."""
        return split_by_share(tasks, {each.name: each.share for each in self.worlds})

    def make(self) -> Tasks:
        made = [(each, each.source.on(self.split).tasks.make()) for each in self.worlds]
        places = [(n, offset) for n, each in enumerate(self.worlds) for offset in range(each.share)]

        def task(index: int) -> Task:
            cycle, place = divmod(index, len(places))
            number, offset = places[place]
            each, tasks = made[number]
            return dataclasses.replace(tasks(cycle * each.share + offset), world=each.name)

        return task


@dataclass(frozen=True, kw_only=True)
class MixedSource(EpisodeSource):
    """An episode source over several worlds. `rollout` has limits that cover those of all."""

    tasks: MixedTasks

    def make_rollout(self, tokenizer: Any) -> MixedRollout:
        parts = {each.name: each.source.make_rollout(tokenizer) for each in self.tasks.worlds}
        return MixedRollout(self.rollout, parts)


def mixed_source(*worlds: WorldShare) -> MixedSource:
    """A source over these worlds. Their temperature and history must agree."""
    names = [each.name for each in worlds]
    if len(worlds) < 2 or len(set(names)) != len(names) or min(each.share for each in worlds) < 1:
        raise ConfigError("worlds", f"a mixed run needs two or more names and shares: {names}")
    limits = [each.source.rollout for each in worlds]
    for field in ("temperature", "history"):
        values = {getattr(each, field) for each in limits}
        if len(values) > 1:
            found = ", ".join(sorted(map(str, values)))
            raise ConfigError(field, f"the worlds of a mixed run differ in it: {found}")
    most = {
        field: max(getattr(each, field) for each in limits)
        for field in ("max_turns", "max_actions", "turn_tokens", "episode_tokens")
    }
    # No bound is the largest.
    unbounded = any(not each.context_tokens for each in limits)
    most["context_tokens"] = 0 if unbounded else max(each.context_tokens for each in limits)
    return MixedSource(
        rollout=limits[0].replace(**most),
        tasks=MixedTasks(worlds=worlds),
        codec=worlds[0].source.codec,
    )


class MixedRollout(Rollout):
    """Plays each task in the world that it names."""

    class Config(Rollout.Config):
        """The limits that cover those of all worlds."""

    def __init__(self, config: Rollout.Config, parts: Mapping[str, Rollout]) -> None:
        first, *others = parts.values()
        super().__init__(config, first.codec, verifier=first.verifier)
        self.parts = parts
        self.worlds = tuple(parts)
        for part in (first, *others):
            if isinstance(part.codec, RolloutCodec) and part.codec.allowed_ids is not None:
                raise ConfigError("worlds", "a codec that masks ids cannot be in a mixed run")

    def __exit__(self, *error: object) -> None:
        for part in self.parts.values():
            part.__exit__(*error)
        super().__exit__(*error)

    async def run_one(self, sampler: Sampler, task: Task, member: int, seed: int) -> TokenEpisode:
        part = self.parts.get(task.world)
        if part is None:
            known = ", ".join(self.parts)
            raise ConfigError("worlds", f"a task names the world {task.world!r}, known are {known}")
        part.watchdog = self.watchdog
        episode = await part.run_one(sampler, task, member, seed)
        self.env_steps = sum(each.env_steps for each in self.parts.values())
        return episode
