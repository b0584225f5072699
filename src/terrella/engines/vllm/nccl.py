"""Weights to a vLLM server over NCCL: for a server on GPUs of its own.

vLLM's trainer-side engine does the transfer. Here are the two things it asks for: a client for the
server's routes, with our key, and a source of weights. The main process sends while all processes
iterate the weights, which gathers them one at a time. On devices that trainer and server share NCCL
cannot be used (one device would be two ranks); there weights travel by file.
    transfer = NcclTransfer(post=sampler.post, workers=2, dtype="bfloat16")
    transfer.send(MergedWeights(model))
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

LOOPBACK = "127.0.0.1"


class NcclTransfer:
    """One NCCL group of the trainer's main process (rank 0) and the server's workers."""

    def __init__(self, post: Callable[[str, Any], Any], *, workers: int, dtype: str) -> None:
        """`post` sends a request with the key; `workers` is the server's number of GPUs.

        vLLM numbers the workers of all copies of the weights through.
        """
        self.post = post
        self.workers = workers
        self.dtype = dtype
        self._engine: Any = None

    def send(self, weights: Any) -> None:
        """Send all weights; `weights` is a `MergedWeights`."""
        from vllm.distributed.weight_transfer.nccl_engine import (
            NCCLTrainerInitInfo,
            NCCLTrainerWeightTransferEngine,
        )

        source = _source(weights, self.dtype)
        if self._engine is None:
            rendezvous = NCCLTrainerInitInfo(
                rank=0,
                master_address=LOOPBACK,
                master_port=_free_port(),
                world_size=self.workers + 1,
            )
            self._engine = NCCLTrainerWeightTransferEngine.trainer_init(
                rendezvous, client=self, source=source
            )
        self._engine.source = source
        self._engine.send_weights()

    # --- vLLM's `VLLMWeightSyncClient` ------------------------------------------------------------

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.post("/init_weight_transfer_engine", {"init_info": init_info})

    def shutdown_weight_transfer_engine(self) -> None:
        self.post("/shutdown_weight_transfer_engine", {})

    def start_weight_update(self) -> None:
        self.post("/start_weight_update", {})

    def update_weights(self, update_info: Any) -> None:
        self.post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.post("/finish_weight_update", {})


def _source(weights: Any, dtype: str) -> Any:
    """The weights as vLLM's `WeightSource`, cast to a server's 16 bits before they travel."""
    import torch
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype)

    class Source(WeightSource):  # type: ignore[misc]
        def metadata(self) -> list[Any]:
            return [
                ParamMeta(name=name, dtype=half or own, shape=shape)
                for name, shape, own in weights.shapes()
            ]

        def __iter__(self) -> Iterator[tuple[str, Any]]:
            for name, weight in weights:
                yield name, weight.to(half or weight.dtype)

    return Source()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
