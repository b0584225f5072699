"""engine=tinker on SkyRL's open server: SFT and GRPO through a pipeline. `.ci/nightly` runs it.

Must be seen: the reward rises, sampler and trainer agree, and the first gradient norm is that of
the TRL engine on the same episodes. The figures go to results/engine_tinker.json.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "engine_tinker.py"
SERVER = os.environ.get("TERRELLA_TINKER_SERVER", "")
"""A virtual environment with skyrl[tinker,jax]."""
SETTINGS = {"max_lora_adapters": 6, "sample_max_num_sequences": 32, "train_micro_batch_size": 32}

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        os.environ.get("TERRELLA_NIGHTLY") != "1" or not SERVER,
        reason=".ci/nightly sets TERRELLA_NIGHTLY=1 and TERRELLA_TINKER_SERVER",
    ),
]


@contextlib.contextmanager
def served(model: Path, work: Path):
    """The address of a server of this base model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    work.mkdir()
    command = [f"{SERVER}/bin/python", ROOT / "tests" / "support" / "tinker_server.py"]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(Path(SERVER) / "jax-cache"),
    }
    environment.pop("PYTHONPATH", None)
    with (work / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(model), str(port), str(work), json.dumps(SETTINGS)],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, process, work / "server.log")
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # the API and the engine that it started
        process.wait(60)


def wait_until_healthy(url: str, process: subprocess.Popen, log: Path, seconds: int = 600) -> None:
    for _ in range(seconds):
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=5).close()
            return
        time.sleep(1)
    raise AssertionError("the server does not answer")


def measure(*words: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_sft_and_grpo_on_the_open_server(tmp_path):
    """An adapter needs a base that knows something: one is fitted on TRL first."""
    measure("base", str(tmp_path))
    with served(tmp_path / "base", tmp_path / "server") as url:
        measure("run", str(tmp_path), url, TINKER_API_KEY="tml-local")
    measured = json.loads((tmp_path / "measured.json").read_text())
    reward = measured["reward"]
    assert len(reward) == 15
    assert sum(reward[-3:]) > sum(reward[:3]) + 0.15
    assert measured["mismatch max"] < 1e-3
    assert measured["gradient norm"]["tinker"] == pytest.approx(
        measured["gradient norm"]["trl"], rel=1e-2
    )
    assert measured["reduction"] == {"rows_mean": True, "tokens_mean": True}
