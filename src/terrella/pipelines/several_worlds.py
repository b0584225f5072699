"""Several worlds in one run: each with its name, its limits and its share.

worlds = named_worlds(OtherWorld(world=lake, max_turns=5), config.others)
source = episodes_of(worlds, make_source)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from terrella.core.bounds import check_least
from terrella.core.config import Configurable
from terrella.core.world import World
from terrella.rollout.mixed import WorldShare, mixed_source, split_by_share
from terrella.rollout.source import EpisodeSource


@dataclass(frozen=True, kw_only=True)
class OtherWorld(Configurable.Config):
    """A further world of a run, with its own limits."""

    world: World.Config
    share: int = 1
    """Groups of it for each group of the first world."""
    max_turns: int = 10
    max_actions: int = 1

    def __post_init__(self) -> None:
        check_least(self, share=1, max_turns=1, max_actions=1)


def named_worlds(first: OtherWorld, others: Iterable[OtherWorld]) -> dict[str, OtherWorld]:
    """All worlds by name; one whose name is taken gets a number."""
    named: dict[str, OtherWorld] = {}
    for each in (first, *others):
        name = each.world.owner.name
        count = sum(other.world.owner.name == name for other in named.values())
        named[f"{name}-{count + 1}" if count else name] = each
    return named


def episodes_of(
    worlds: Mapping[str, OtherWorld], make_source: Callable[[OtherWorld], EpisodeSource]
) -> EpisodeSource:
    """The source of the only world, or one that takes turns by the shares."""
    sources = {name: make_source(each) for name, each in worlds.items()}
    if len(sources) == 1:
        return next(iter(sources.values()))
    shares = [
        WorldShare(name=name, source=sources[name], share=each.share)
        for name, each in worlds.items()
    ]
    return mixed_source(*shares)


def split_among(worlds: Mapping[str, OtherWorld], total: int) -> dict[str, int]:
    """Split a total among the worlds by their shares."""
    return split_by_share(total, {name: each.share for name, each in worlds.items()})


def vocabulary_of(worlds: Iterable[OtherWorld]) -> tuple[str, ...]:
    """The words of all worlds, for a model that is made from scratch."""
    words: dict[str, None] = {}
    for each in worlds:
        world: World = each.world.build()
        world.reset(seed=0)
        words.update(dict.fromkeys(world.vocabulary()))
    return tuple(words)
