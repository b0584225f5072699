"""Ranks of a launched run: how they end."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.launched import TORCHRUN

from terrella.engines import ranks
from terrella.engines.ranks import end_rank

SUPPORT = Path(__file__).parents[2] / "support"
SCRIPT = SUPPORT / "ended_rank.py"


def test_ranks_end_well_while_gloo_still_holds_tensors():
    # Without `end_rank`, about every second of these is aborted.
    command = [sys.executable, *TORCHRUN, "2", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(4):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_a_barrier_waits_longer_than_a_collective():
    """Rank 0 may wait hours for a folder that another run is making."""
    command = [sys.executable, *TORCHRUN, "2", str(SUPPORT / "late_rank.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_ranks_have_time_to_write_a_large_checkpoint(monkeypatch):
    """NCCL's own limit is ten minutes; trainers and learners meet before accelerate sets that."""
    accelerate = pytest.importorskip("accelerate")
    asked = {}
    monkeypatch.setattr(accelerate, "PartialState", lambda **settings: asked.update(settings))
    ranks.join_ranks()
    assert not asked  # one process
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks.join_ranks()
    assert asked["timeout"] >= timedelta(hours=1)


def test_what_a_rank_printed_and_its_exit_handlers_are_kept(tmp_path):
    script = "\n".join(
        (
            "import atexit, pathlib, sys",
            "from terrella.engines.ranks import end_rank",
            "atexit.register(pathlib.Path(sys.argv[1]).touch)",
            "print('done')",
            "end_rank()",
            "print('not reached')",
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "handler")],
        env={**os.environ, "WORLD_SIZE": "2", "RANK": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "done\n" and (tmp_path / "handler").exists()


def test_a_run_of_one_process_ends_as_usual(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    end_rank()  # returns
