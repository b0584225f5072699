"""Makes the last groups of a batch unanimous: without variance they have no gradient."""

import dataclasses
from typing import Any

from terrella.core.types import Verdict


def with_unanimous_groups(episodes: list[Any], size: int, count: int = 1) -> list[Any]:
    """The same episodes; those of the last groups have full reward, unless they are masked."""
    first = len(episodes) - count * size
    return [*episodes[:first], *map(_certain, episodes[first:])]


def _certain(episode: Any) -> Any:
    if episode.outcome.value is None:
        return episode
    turns = (1.0,) * len(episode.turn_rewards)
    return dataclasses.replace(episode, outcome=Verdict.of(1.0), turn_rewards=turns)
