"""What a run trains: the settings of SFT and RL in a pipeline's config, and their warm-up.

for where, part in training_parts(config): part.learning_rate
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from terrella.core.config import Configurable
from terrella.engines.configs import EngineConfig, RlvrConfig, SftConfig

logger = logging.getLogger("terrella")


def training_parts(
    config: EngineConfig, rlvr: RlvrConfig | None = None
) -> Iterator[tuple[str, SftConfig | RlvrConfig]]:
    """The settings of SFT and RL inside a pipeline's config, with the paths that `--set` takes.

    `rlvr` is the RL of a config that does not hold it. RL of no steps is left out.
    """
    found = dict(_parts(config))
    if rlvr is not None:
        found.setdefault("rlvr", rlvr)
    for where, part in found.items():
        if not isinstance(part, RlvrConfig) or part.steps:
            yield where, part


def _parts(config: Any, path: str = "") -> Iterator[tuple[str, SftConfig | RlvrConfig]]:
    if isinstance(config, SftConfig | RlvrConfig):
        yield path, config
    elif isinstance(config, Configurable.Config):
        for each in fields(config):
            inner = f"{path}.{each.name}" if path else each.name
            yield from _parts(getattr(config, each.name), inner)


def changed_fields(config: Configurable.Config) -> dict[str, Any]:
    """The fields that differ from their default, with that default."""
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(config)
    }
    return {name: value for name, value in defaults.items() if getattr(config, name) != value}


def warmup_within(asked: int, steps: int) -> int:
    """The warm-up of a run of so many steps: as asked, or a tenth of a run that would be all of it.

    The first step of a warm-up has the learning rate 0: a run of one step would learn nothing.
    """
    if asked < steps or not asked:
        return asked
    logger.warning("warmup_steps=%d, but there are %d steps: set to %d", asked, steps, steps // 10)
    return steps // 10
