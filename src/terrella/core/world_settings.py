"""What every world's config has: the fields, and what a caller asks a config before it builds.

config.max_steps; config.exclusive  # "" unless episodes share what they change
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from terrella.core.config import Configurable, Recorded
from terrella.core.errors import ConfigError
from terrella.core.types import Split


@dataclass(frozen=True, kw_only=True)
class WorldSettings(Configurable.Config):
    """Settings of every world."""

    max_steps: int = 10
    """The episode is truncated after this many actions."""
    split: Split = Split.TRAIN
    """The split of the instances, unless `reset` gets another one."""
    view: Recorded[str] = "state"
    """What a model is shown; the world's class lists its views."""

    def __post_init__(self) -> None:
        """Refuse an episode without steps."""
        if self.max_steps < 1:
            raise ConfigError("max_steps", f"must be at least 1, not {self.max_steps}")

    @property
    def exclusive(self) -> str:
        """What an episode has to itself on this machine; episodes of the same name take turns.

        Empty for most worlds: their episodes share nothing that they change.
        """
        return ""

    def shares_tasks(self, trained: Mapping[str, Any]) -> bool:
        """Whether a test here holds tasks that a world of a manifest has practised.

        Splits prevent it; only a world that puts tasks of all splits into its test says otherwise.
        """
        return False

    def kept_in(self, folder: Path) -> Self:
        """The same world with a folder of a run for what it keeps between sessions.

        Most worlds keep nothing.
        """
        return self
