"""Which groups a step takes with schedule=async: the oldest that have finished, none too old.

A replay buffer for verl's key `custom_sampler`. verl's own drops groups that are too old, or waits
for those that become so in this step only; here a step also waits for a group that later steps
could not take in time, so that nothing is played in vain.
    trainer.v1.sampler.custom_sampler.path=pkg://terrella.engines.verl.stale_groups
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from terrella.core.errors import EngineError
from terrella.engines.configs import RlvrConfig


class StaleGroupBuffer(ReplayBufferAsync):  # type: ignore[misc]
    """verl's asynchronous buffer with the bound of `RlvrConfig.staleness`."""

    settings: RlvrConfig
    submit: Any = None
    """Not used: there are no refills."""
    dropped_env_steps: int = 0
    first_round: dict[str, float] | None = None

    def _has_enough_samples(
        self, global_steps: int, partition_id: str, batch_size: int, sampleable_keys: set[str]
    ) -> bool:
        return may_take(
            self.prompt_global_steps[partition_id],
            sampleable_keys,
            step=global_steps,
            groups=batch_size,
            staleness=self.settings.staleness,
        )

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> Any:
        """Refuse a group with missing episodes: a server or a process was lost.

        verl would replace it and continue.
        """
        lost = len(self.failure_keys[partition_id])
        if lost:
            raise EngineError(
                "rollout",
                f"{lost} groups of step {global_steps} lost an episode",
                "the log above names the server or process",
            )
        return super()._terminal_eviction_reasons(global_steps, partition_id)


def may_take(
    started: Mapping[str, int],
    finished: Collection[str],
    *,
    step: int,
    groups: int,
    staleness: int,
) -> bool:
    """Whether this step may take its groups, the oldest first.

    `started` has the step in which each open group was started. Each of the next steps takes
    `groups` more, so those that must be gone by then and do not fit must have finished now.
    """
    if len(finished) < groups:
        return False
    for later in range(staleness + 1):
        last = step + later - staleness
        due = sum(at <= last for at in started.values()) - later * groups
        if sum(started[key] <= last for key in finished) < due:
            return False
    return True
