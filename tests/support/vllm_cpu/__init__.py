"""vLLM on a CPU: the settings of a server and the environment of the process that starts it."""

import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SETTINGS = (
    "sampler=vllm",
    "vllm.dtype=float32",
    "vllm.max_model_len=1024",
    "vllm.max_num_seqs=32",
    "vllm.worker_extension=live_weights.LiveWeightFiles",
    "vllm.arguments=--enforce-eager",
)
"""The same for the command line."""


def environment(memory_gib: int = 1) -> dict[str, str]:
    """Variables for the process that starts the server, which passes them on."""
    return {
        "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(memory_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


def settings(**changes: Any) -> dict[str, Any]:
    """Fields of `VllmServer.Config` for small models on a CPU."""
    return {
        "max_model_len": 1024,
        "max_num_seqs": 32,
        "arguments": ("--enforce-eager",),
        "worker_extension": "live_weights.LiveWeightFiles",
        **changes,
    }
