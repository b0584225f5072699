"""One chunk of a collection: a pure function of its spec, in this process or on a worker.

The spec is plain JSON, the result Parquet bytes. World and policy are built anew for each chunk, so
that even a world that keeps state between episodes gives the same bytes after a kill.
    data = play_chunk({"config": ..., "modules": [...], "first": 0, "last": 2000, ...})
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator
from typing import Any, TypedDict

from terrella.core.config import rebuild
from terrella.core.episode import play
from terrella.core.seeds import SEED_STRIDE, instance_seed
from terrella.core.types import Episode, Split, Stop
from terrella.core.world import World
from terrella.data.parts import encode_part

MAX_EPISODES = SEED_STRIDE
LOOK_AFTER = 100
"""Episodes after which a world or an endpoint that is down is noticed: no more are stored."""

OnEpisode = Callable[[int, int], None]
"""Called with the episodes and transitions of the chunk so far."""


class ChunkSpec(TypedDict):
    """Everything that a chunk depends on."""

    config: dict[str, Any]
    """The dumped config of the collection."""
    modules: list[str]
    """Modules to import before the config can be loaded."""
    first: int
    last: int
    limit: int | None
    """Transitions after which the chunk may end early."""
    spec_hash: str


def play_chunk(
    spec: ChunkSpec, on_episode: OnEpisode = lambda episodes, transitions: None
) -> bytes:
    """Play the episodes from `first` to `last` and encode them.

    It ends early at `limit`, or when most episodes break.
    """
    for module in spec["modules"]:  # the main process has imported them, so a worker may, too
        importlib.import_module(module)
    episodes: list[Episode] = []
    transitions = 0
    broken = 0
    with contextlib.closing(_play_all(spec)) as played:
        for episode in played:
            episodes.append(episode)
            transitions += len(episode.transitions)
            broken += episode.stop.is_broken
            on_episode(len(episodes), transitions)
            if spec["limit"] is not None and transitions >= spec["limit"]:
                break
            if len(episodes) == LOOK_AFTER and broken * 2 > LOOK_AFTER:
                break  # the main process sees the share and refuses
    return encode_part(episodes, spec["first"], spec["spec_hash"])


def _play_all(spec: ChunkSpec) -> Generator[Episode]:
    config = spec["config"]
    split = Split(config["split"])
    world_config = rebuild(config["world"])
    policy = rebuild(config["policy"]).build()
    world = world_config.build()
    try:
        for index in range(spec["first"], spec["last"]):
            seed, noise_seed = episode_seeds(config["seed"], index)
            episode = play(world, policy, seed=seed, noise_seed=noise_seed, split=split)
            yield episode
            if episode.stop in (Stop.WORLD_ERROR, Stop.WORLD_TIMEOUT):
                _close(world)
                world = world_config.build()  # a world that broke may stay broken
    finally:
        _close(world)


def _close(world: World) -> None:
    # A world that broke may not even close; its episodes say what happened.
    with contextlib.suppress(Exception):
        world.close()


def episode_seeds(seed: int, index: int) -> tuple[int, int]:
    """Instance seed and noise seed of an episode. No two collect seeds share an instance seed.

    With seed 0 the instance seed is the index itself, easy to play again. Noise seeds begin at 1,
    because evaluation begins at 0: the noise of the data is not the noise of the test.
    """
    return instance_seed(seed, index), index + 1
