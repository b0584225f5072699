"""Refuses worlds of frames where a model of text is trained or asked.

require_text(FrozenLake.Config())
"""

from __future__ import annotations

import contextlib

from terrella.core.errors import ConfigError
from terrella.core.spaces import Observations
from terrella.core.types import Kind
from terrella.core.world import World


def require_text(config: World.Config) -> None:
    """Refuse a world whose observations are frames. It is not reset: a page may be slow to open."""
    world: World = config.real.build()
    with contextlib.closing(world):  # a text game has started Java
        space = getattr(world, "observation_space", None)
    if isinstance(space, Observations) and space.kind is Kind.FRAMES:
        raise ConfigError(
            world.name,
            "shows frames, and this model reads text",
            "train a model of frames with a recipe of video, and evaluate policies on pixels with "
            "--in (docs/video.md)",
        )
