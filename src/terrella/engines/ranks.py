"""What the ranks of a launched run do together: wait, share one vLLM server, and end.

Rank 0 starts the server and every rank samples with it. Its address and key are broadcast as bytes:
no pickle, and no key on disk.
    with share_address(server) as address: sampler = sampler_of(config, **address)
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from terrella.core.errors import ConfigError
from terrella.core.run_folder import machine_count, processes
from terrella.engines.vllm.server import VllmServer

COLLECTIVE_LIMIT = timedelta(hours=1)
"""How long a rank waits for others in a collective before its process group gives up.

Rank 0 writes and hashes exports and checkpoints meanwhile: many minutes for a large model on slow
storage. NCCL's own limit is ten minutes.
"""
POLL_SECONDS = 0.1
_BARRIERS = itertools.count()
"""Every rank counts its barriers; they are the same ones."""


@contextlib.contextmanager
def share_address(server: VllmServer | None) -> Iterator[dict[str, str]]:
    """The address and key of rank 0's server, in every rank of this machine.

    All ranks enter and leave together: no rank samples when the server is given other weights.
    """
    if processes() == 1:
        yield {}
        return
    check_one_machine(machine_count())
    own = {"url": server.url, "key": server.key} if server else {}
    yield json.loads(_broadcast(json.dumps(own).encode()))
    barrier()


def check_one_machine(machines: int) -> None:
    """Refuse a server for the ranks of several machines."""
    if machines > 1:
        raise ConfigError(
            "sampler",
            f"a vLLM server beside the trainer listens on loopback: it serves one machine, not "
            f"{machines}",
            "train on one machine, or set engine=verl",
        )


def barrier() -> None:
    """Wait for all ranks of the run, however long; nothing to do for a run of one process.

    Rank 0 may come hours later: it waits for a folder that another run is making. A collective
    would give up before, so arrivals are counted where the ranks met.
    """
    if processes() == 1:
        return
    state = _state()
    store, name = _store(), f"terrella/barrier/{next(_BARRIERS)}"
    store.add(name, 1)
    while store.add(name, 0) < state.num_processes:
        time.sleep(POLL_SECONDS)
    state.wait_for_everyone()  # the store is rank 0's: nobody leaves while others still ask it


def join_ranks() -> None:
    """Meet the other ranks of the run, unless they have met; nothing to do for one process."""
    if processes() > 1:
        _state()


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

    return PartialState(cpu=not torch.cuda.is_available(), timeout=COLLECTIVE_LIMIT)


def _store() -> Any:
    """The key-value store of the rendezvous; each rank has a connection to it."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
