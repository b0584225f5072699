"""What a config trains: the settings of SFT, RL, learners and frame tokenizers that a run uses.

for where, part in training_parts(config): part.learning_rate
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from terrella.core.config import Configurable
from terrella.core.world import World
from terrella.engines.configs import (
    EngineConfig,
    LearnerConfig,
    MemoryConfig,
    RlvrConfig,
    SftConfig,
)
from terrella.engines.frames.configs import TokenizerTrainConfig

logger = logging.getLogger("terrella")
Settings = SftConfig | RlvrConfig | LearnerConfig | TokenizerTrainConfig
Trained = SftConfig | RlvrConfig | LearnerConfig
"""Settings of what an engine trains; a frame tokenizer has a trainer of its own."""
CRITIC = "critic"
"""A learner in a field of this name has a value head."""


def training_parts(
    config: EngineConfig, rlvr: RlvrConfig | None = None
) -> Iterator[tuple[str, Trained]]:
    """What an engine will train for this config, with the paths that `--set` takes.

    `rlvr` is the RL of a config that does not hold it.
    """
    found = dict(used_settings(config))
    if rlvr is not None and rlvr.steps:
        found.setdefault("rlvr", rlvr)
    for where, part in found.items():
        if isinstance(part, MemoryConfig):
            yield where, part


def used_settings(config: Any) -> list[tuple[str, Settings]]:
    """The settings of the trainers that a pipeline will start, with their paths.

    RL of no steps is left out, and what the config names in `unused`.
    """
    unused = getattr(config, "unused", ())
    return [
        (path, each)
        for path, each in settings_of(config)
        if path not in unused and not (isinstance(each, RlvrConfig) and not each.steps)
    ]


def settings_of(config: Any, path: str = "") -> Iterator[tuple[str, Settings]]:
    """The settings of trainers inside a config, with the paths that `--set` takes."""
    if isinstance(config, Settings):
        yield path, config
    elif isinstance(config, Mapping):
        for name, part in config.items():
            yield from settings_of(part, f"{path}.{name}" if path else name)
    elif isinstance(config, Configurable.Config) and not isinstance(config, World.Config):
        for each in fields(config):
            inner = f"{path}.{each.name}" if path else each.name
            yield from settings_of(getattr(config, each.name), inner)


def has_value_head(where: str) -> bool:
    """Whether the learner with these settings has a value head."""
    return where.rpartition(".")[2] == CRITIC


def changed_fields(config: Configurable.Config) -> dict[str, Any]:
    """The fields that differ from their default, with that default."""
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(config)
    }
    return {name: value for name, value in defaults.items() if getattr(config, name) != value}


def warmup_within(asked: int, steps: int) -> int:
    """The warm-up in steps; a tenth of the run if it would fill the run.

    The first step of a warm-up has the learning rate 0: a run of one step would learn nothing.
    """
    if asked < steps or not asked:
        return asked
    logger.warning("warmup_steps=%d, but there are %d steps: set to %d", asked, steps, steps // 10)
    return steps // 10
