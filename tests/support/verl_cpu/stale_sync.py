"""A weight sync that silently does nothing after the first step; the mismatch monitor finds it.

`VERL_USE_EXTERNAL_MODULES=verl_on_cpu,stale_sync` loads it; it matters in the trainer's process.
"""

from typing import Any

from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync


def _forget(self: Any) -> None:
    """Do nothing at the end of a step: the servers keep their weights."""


PPOTrainerSync.on_step_end = _forget
