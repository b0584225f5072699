"""The attack campaign: how large it is, and where its findings are written.

Each test in this folder attacks as often as the level says, asserts that nothing broke, and records
what it did. `.ci/attack commit|nightly|weekly` sets the level.
    for number in range(trials(commit=200, nightly=500)): ...
    record("bit_flips", {"flips": 200, "silent": 0})
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from terrella.core.run_folder import installed_versions

ROOT = Path(__file__).parents[2]
Level = Literal["commit", "nightly", "weekly"]
LEVEL = os.environ.get("TERRELLA_ATTACK", "commit")
RECORDS = os.environ.get("TERRELLA_ATTACK_RECORDS")
"""The folder for findings; without it nothing is recorded."""
if LEVEL not in get_args(Level):
    raise ValueError(f"TERRELLA_ATTACK={LEVEL}: must be one of {', '.join(get_args(Level))}")


def trials(*, commit: int, nightly: int, weekly: int | None = None) -> int:
    """How often to attack at this level."""
    return {"commit": commit, "nightly": nightly, "weekly": weekly or nightly}[LEVEL]


def record(name: str, findings: Mapping[str, Any]) -> None:
    """Write attack_NAME.json: what was tried, what was found, at which level and commit."""
    if RECORDS is None:
        return
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    content = {
        "command": f".ci/attack {LEVEL}",
        "commit": commit,
        "versions": installed_versions(),
        **findings,
    }
    path = Path(RECORDS) / f"attack_{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
