"""What the ranks of a launched run do together: wait, share one vLLM server, and end.

Rank 0 starts the server and every rank samples with it. Its address and key are broadcast as bytes:
no pickle, and no key on disk.
    with share_address(server) as address: sampler = sampler_of(config, **address)
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from terrella.core.errors import ConfigError
from terrella.core.run_folder import processes
from terrella.engines.vllm.server import VllmServer


@contextlib.contextmanager
def share_address(server: VllmServer | None) -> Iterator[dict[str, str]]:
    """The address and key of rank 0's server, in every rank of this machine.

    All ranks enter and leave together: no rank samples when the server is given other weights.
    """
    ranks = processes()
    if ranks == 1:
        yield {}
        return
    if int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks))) != ranks:
        raise ConfigError(
            "sampler",
            "a vLLM server beside the trainer listens on loopback: it serves one machine",
            "train on one machine, or set engine=verl",
        )
    own = {"url": server.url, "key": server.key} if server else {}
    yield json.loads(_broadcast(json.dumps(own).encode()))
    barrier()


def barrier() -> None:
    """Wait for all ranks of the run; nothing to do for a run of one process."""
    if processes() > 1:
        _state().wait_for_everyone()


def end_rank() -> None:
    """End this process when its command is done; a run of one process ends as usual.

    A gloo thread releases the tensors of a collective after the collective has returned. It needs
    Python's lock for that, and aborts the process if Python is shutting down by then ("terminate
    called without an active exception"). The launcher would report a finished run as failed. So a
    rank exits without that shutdown.
    """
    if processes() == 1:
        return
    if "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized():
        barrier()  # rank 0 holds the rendezvous
        _state().destroy_process_group()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def averaged(module: Any) -> Any:
    """The module with gradients averaged over the ranks; itself in a run of one process."""
    if processes() == 1:
        return module
    from torch.nn.parallel import DistributedDataParallel

    device = _state().device
    return DistributedDataParallel(module, [device] if device.type == "cuda" else None)


def summed(tensor: Any) -> Any:
    """The sum of a tensor over the ranks."""
    if processes() > 1:
        from torch import distributed

        _state()
        distributed.all_reduce(tensor)
    return tensor


def of_rank_0(number: int) -> int:
    """Rank 0's number, in every rank."""
    return number if processes() == 1 else int(_broadcast(str(number).encode()))


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
