"""A weight sync that silently does nothing after the first step: what the mismatch monitor is there for.

`VERL_USE_EXTERNAL_MODULES=verl_on_cpu,stale_sync` loads it; the trainer's process is the one that matters.
"""

from typing import Any

from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync


def _forget(self: Any) -> None:
    """The step ended; the servers keep the weights they have."""


PPOTrainerSync.on_step_end = _forget
