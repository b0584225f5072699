"""One vLLM server for all ranks of a launched run: rank 0 starts it, every rank samples with it.

Its address and key are broadcast as bytes: no pickle, and no key on disk. No rank waits in a
collective while the server loads; each asks the server until it answers.
    with server_for_ranks(config, folder, log=work / "vllm.log") as sampler: ...
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError, EngineError
from terrella.engines.vllm.sampler import VllmSampler
from terrella.engines.vllm.server import VllmServer, sampler_of


@contextlib.contextmanager
def server_for_ranks(
    config: VllmServer.Config, folder: Path, *, log: Path
) -> Iterator[VllmSampler]:
    """A sampler on one server, in every rank of this machine. All ranks enter and leave together.

    `folder` and `log` are used by rank 0 only.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks == 1:
        with VllmServer(config, folder, log=log) as server:
            yield server.sampler()
        return
    if int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks))) != ranks:
        raise ConfigError(
            "sampler",
            "a vLLM server beside the trainer listens on loopback: it serves one machine",
            "train on one machine, or set engine=verl",
        )
    if int(os.environ["RANK"]) == 0:
        with _started(config, folder, log) as server:
            yield server.sampler()
            barrier()  # no rank is still sampling when the server ends
        return
    address = json.loads(_broadcast(b""))
    if not address:
        raise EngineError("vllm", "rank 0 could not start the server", "see its message")
    sampler = sampler_of(config, **address)
    _wait(sampler, config.start_seconds)
    yield sampler
    barrier()


@contextlib.contextmanager
def _started(config: VllmServer.Config, folder: Path, log: Path) -> Iterator[VllmServer]:
    server = VllmServer(config, folder, log=log)
    address: dict[str, str] = {}
    try:
        server.start()
        address = {"url": server.url, "key": server.key}
    finally:
        _broadcast(json.dumps(address).encode())  # also after a failure: the others wait for it
    try:
        server.wait_until_healthy()
        yield server
    finally:
        server.close()


def _wait(sampler: VllmSampler, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not sampler.healthy():
        if time.monotonic() > deadline:
            raise EngineError("vllm", f"not healthy after {seconds:.0f} s", "see rank 0's vllm.log")
        time.sleep(0.5)


def barrier() -> None:
    """Wait for all ranks of the run; nothing to do for a run of one process."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _state().wait_for_everyone()


def _broadcast(data: bytes) -> bytes:
    """Rank 0's bytes, in every rank."""
    import torch
    from torch import distributed

    state = _state()
    length = torch.tensor([len(data)], device=state.device)
    distributed.broadcast(length, src=0)
    content = torch.zeros(int(length), dtype=torch.uint8, device=state.device)
    if state.is_main_process:
        content = torch.tensor(list(data), dtype=torch.uint8, device=state.device)
    distributed.broadcast(content, src=0)
    return bytes(content.tolist())


def _state() -> Any:
    """Accelerate's process state, which starts the process group if nothing has yet."""
    import torch
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available())
