"""Every kind of pipeline on every engine, from the same config: a few steps each, on a CPU.

The columns vllm and verl run where those packages are installed (`.ci/verl`).
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "engine_matrix.py"
RL = ("agent", "world_model", "spa", "text_game", "page_model", "video")
ROWS = (*RL, "evaluate", "certify", "sft")
GATE = ("spa", "text_game", "video")
"""Rows that servers run at every commit; TERRELLA_NIGHTLY=1 runs all of them."""
MISMATCH = 1e-3
"""Sampler and trainer compute in fp32; larger means stale weights or other numerics."""


def cell(row: str, column: str, folder: Path) -> dict:
    if row == "video" and importlib.util.find_spec("mujoco") is None:
        pytest.skip("pip install 'terrella[video]'")
    code = (
        f"import sys, pathlib; sys.path.insert(0, {str(SCRIPT.parent)!r}); import engine_matrix, "
        f"json; print(json.dumps(engine_matrix.start_cell({row!r}, {column!r}, "
        f"pathlib.Path({str(folder)!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def in_gate(row: str) -> None:
    if row not in GATE and not os.environ.get("TERRELLA_NIGHTLY"):
        pytest.skip("runs with TERRELLA_NIGHTLY=1")


def check(row: str, measured: dict) -> None:
    curve = measured["curve"]
    if row == "sft":
        assert measured["result"]["validation"]["gain"]["low"] > 0
        return
    if row not in RL:
        assert measured["result"]
        return
    assert len(curve) == 2
    for step in curve:
        assert step["reward"] >= 0.0 and step["masked"] == 0.0
        # A step whose groups have no variance trains on nothing, and compares nothing.
        assert step.get("mismatch/max", 0.0) < MISMATCH


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_in_process(row, tmp_path):
    check(row, cell(row, "trl", tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason=".ci/verl installs vLLM")
@pytest.mark.parametrize("row", ROWS)
def test_on_a_vllm_server(row, tmp_path):
    in_gate(row)
    check(row, cell(row, "vllm", tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason=".ci/verl installs verl")
@pytest.mark.parametrize("row", ROWS)
def test_on_verl(row, tmp_path):
    in_gate(row)
    check(row, cell(row, "verl", tmp_path))
