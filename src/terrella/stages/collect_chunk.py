"""One chunk of a collection: a pure function of its spec, wherever it runs (this process or a worker).

The spec is plain JSON, the result Parquet bytes. World and policy are built anew for each chunk, so that even a world
that remembers too much gives the same bytes after a kill.
    data = play_chunk({"config": ..., "modules": [...], "first": 0, "last": 2000, "limit": None, "plan": digest})
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator, Mapping
from typing import Any

from terrella.core.config import load
from terrella.core.episode import play
from terrella.core.types import Episode, Split, Stop
from terrella.core.world import World
from terrella.data.parts import encode_part

MAX_EPISODES = 2**32
LOOK_AFTER = 100
"""So many episodes tell whether a world or an endpoint is down: then playing on would only fill a store with errors."""

Watch = Callable[[int, int], None]
"""Told the episodes and transitions of the chunk that is being played."""


def play_chunk(spec: Mapping[str, Any], watch: Watch = lambda episodes, transitions: None) -> bytes:
    """Play the episodes from `first` to `last` and encode them; it ends early at `limit`, or when most break."""
    for module in spec["modules"]:  # the driver has imported them: a worker may, too
        importlib.import_module(module)
    episodes, transitions, broken = list[Episode](), 0, 0
    with contextlib.closing(_play_all(spec)) as played:
        for episode in played:
            episodes.append(episode)
            transitions, broken = transitions + len(episode.transitions), broken + episode.stop.is_broken
            watch(len(episodes), transitions)
            if spec["limit"] is not None and transitions >= spec["limit"]:
                break
            if len(episodes) == LOOK_AFTER and broken * 2 > LOOK_AFTER:
                break  # the driver sees the share and refuses
    return encode_part(episodes, spec["first"], spec["plan"])


def _play_all(spec: Mapping[str, Any]) -> Generator[Episode]:
    config, split = spec["config"], Split(spec["config"]["split"])
    world_config, policy = load(config["world"]), load(config["policy"]).build()
    world = world_config.build()
    try:
        for index in range(spec["first"], spec["last"]):
            seed, noise_seed = episode_seeds(config["seed"], index)
            episode = play(world, policy, seed=seed, noise_seed=noise_seed, split=split)
            yield episode
            if episode.stop in (Stop.WORLD_ERROR, Stop.WORLD_TIMEOUT):
                _close(world)
                world = world_config.build()  # what broke once may stay broken
    finally:
        _close(world)


def _close(world: World) -> None:
    with contextlib.suppress(Exception):  # a world that broke may not even close; its episodes say what happened
        world.close()


def episode_seeds(seed: int, index: int) -> tuple[int, int]:
    """Instance seed and noise seed of an episode. No two collect seeds share an instance seed.

    With seed 0 the instance seed is the index itself, easy to play again. Noise seeds begin at 1, because evaluation
    begins at 0: the noise of the data is not the noise of the test.
    """
    return seed * MAX_EPISODES + index, index + 1
