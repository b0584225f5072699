"""What a verl run turns beyond `RlvrSettings`: how many machines, how they are shared. The rest is verl's default.

Any key of verl's own can be set (`--set verl.trainer.log_val_generations=5`); it is checked against verl's schema
before anything starts. This file imports nothing heavy: a config can be read where verl is not installed.
    VerlSettings.Config(nodes=2).open_key("actor_rollout_ref.rollout.seed", "7").keys
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from terrella.core.config import Configurable


class VerlSettings(Configurable):
    """Machines and memory."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Few knobs; `keys` is the way to all others."""

        nodes: int = 1
        devices: int = 0
        """Per node; 0 is all that this machine has."""
        tensor_parallel: int = 1
        """Devices that share one rollout server."""
        server_memory: float = 0.5
        """Share of a device's memory that its rollout server may take."""
        episode_workers: int = 8
        """Processes that play episodes, over the whole cluster."""
        prompt_tokens: int = 1024
        """The longest question; with the driver's `episode_tokens` it bounds what a server must hold."""
        restarts: int = 1
        """Times that a run which lost a process starts again from its last checkpoint."""
        keys: tuple[str, ...] = ()
        """verl's own keys as `path=value`; later ones win, and all win over what is derived."""

        def open_key(self, path: str, text: str) -> Self:
            """`--set verl.<path>=<text>` for a path that is none of the fields above."""
            return self.replace(keys=(*self.keys, f"{path}={text}"))
