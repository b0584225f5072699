"""Makes the last group of a batch unanimous: a group without variance, which has no gradient."""

import dataclasses
from typing import Any

from terrella.core.types import Verdict


def with_unanimous_group(episodes: list[Any], size: int) -> list[Any]:
    """The same episodes; those of the last group have full reward, unless they are masked."""
    return [*episodes[:-size], *map(_certain, episodes[-size:])]


def _certain(episode: Any) -> Any:
    if episode.outcome.value is None:
        return episode
    turns = (1.0,) * len(episode.turn_rewards)
    return dataclasses.replace(episode, outcome=Verdict.of(1.0), turn_rewards=turns)
