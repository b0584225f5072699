"""Whether a server and a trainer can have the GPUs that the settings give them.

check_placement(VllmServer.Config(devices=(6, 7)), ranks=8)  # ConfigError: ranks train there
"""

from __future__ import annotations

from typing import Literal

from terrella.core.errors import ConfigError
from terrella.engines.launcher import visible_gpus
from terrella.engines.vllm.server import VllmServer


def check_placement(
    config: VllmServer.Config, *, ranks: int, schedule: Literal["sync", "async"] = "sync"
) -> None:
    """Refuse a server on GPUs of `ranks` that train, and one that would sleep while it samples."""
    if config.sleep and schedule == "async":
        raise ConfigError(
            "vllm.sleep",
            "with rlvr.schedule=async the server samples while the model trains: it never sleeps",
            "set vllm.sleep=false, with GPUs of the server's own as vllm.devices, or "
            "rlvr.schedule=sync",
        )
    trained_on = (visible_gpus() or tuple(map(str, range(ranks))))[:ranks]
    taken = [str(each) for each in config.devices if str(each) in trained_on]
    if taken:
        raise ConfigError(
            "vllm.devices",
            f"GPU {', '.join(taken)}: a rank trains there, and a server on GPUs of its own takes "
            "nearly all of their memory",
            "launch fewer ranks (--devices), or leave vllm.devices empty to share all GPUs",
        )
