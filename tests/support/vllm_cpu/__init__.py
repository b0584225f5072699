"""vLLM on a CPU: `environment()` for processes, `SETTINGS` for the command line."""

import os
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = (
    "sampler=vllm",
    "vllm.dtype=float32",
    "vllm.max_model_len=1024",
    "vllm.max_num_seqs=32",
    "vllm.worker_extension=live_weights.LiveWeightFiles",
    "vllm.arguments=--enforce-eager",
)


def environment() -> dict[str, str]:
    """The environment of a command whose vLLM server runs on this machine's CPU."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH", ""))))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
