"""Starts a script on one process, or on several as a launcher would, and reads its reports."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def launch(
    script: Path, folder: Path, name: str, processes: int, **environment: str
) -> list[dict[str, Any]]:
    """Run `script FOLDER/NAME.json`; each rank writes its report to `NAME.RANK.json`."""
    command = [
        sys.executable,
        *([*TORCHRUN, str(processes)] if processes > 1 else []),
        str(script),
        str(folder / f"{name}.json"),
    ]
    settings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        **environment,
    }
    done = subprocess.run(
        command, env=settings, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(processes)]
