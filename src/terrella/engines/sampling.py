"""Samplers that an engine starts itself: in this process, or on a vLLM server.

One server serves a whole run. Other weights of the same shape are loaded into it, so evaluation,
self-play and training do not each start one. A server that may sleep does so between two uses.
    with SamplerFactory(EngineConfig(sampler="vllm"), work) as samplers:
        with samplers.open(Path("runs/x/model")) as sampler: ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from terrella.core.protocols import Sampler
from terrella.core.run_folder import check_model, rank
from terrella.engines.configs import LARGEST_MODEL, EngineConfig
from terrella.engines.device_memory import free_cached_memory
from terrella.engines.ranks import barrier, share_address
from terrella.engines.vllm.sampler import VllmSampler
from terrella.engines.vllm.server import VllmServer, sampler_of, wait_until_healthy


class SamplerFactory:
    """Makes samplers of models in folders; use it as a context manager."""

    def __init__(self, config: EngineConfig, work: Path) -> None:
        """`work` is the folder for the server's log. Nothing is started yet."""
        self.config = config
        self.work = work
        self._open = contextlib.ExitStack()
        self._server: VllmServer | None = None
        self._sampler: VllmSampler | None = None
        self._in_use = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server = self._sampler = None
        self._open.close()

    def uses_server(self, model: str | Path) -> bool:
        """Whether a model is sampled by a vLLM server."""
        if self.config.sampler != "auto":
            return self.config.sampler == "vllm"
        from terrella.models.presets import parameter_count

        return parameter_count(model) > LARGEST_MODEL

    @contextlib.contextmanager
    def open(self, model: str | Path) -> Iterator[Sampler]:
        """A sampler of this model, on the device of this process or on the server's.

        Loading the model wakes a sleeping server. After its last user it sleeps again, so that a
        learner finds the memory free.
        """
        check_model(model)
        if not self.uses_server(model):
            from terrella.engines.local.local_sampler import local_sampler
            from terrella.models.presets import load_model

            yield local_sampler(load_model(model)[0])
            return
        sampler = self._serve(model)
        self._in_use += 1
        try:
            yield sampler
        finally:
            self._in_use -= 1
        if not self._in_use:
            sampler.sleep()

    @contextlib.contextmanager
    def for_training(self, model: str | Path) -> Iterator[VllmSampler | None]:
        """A sampler whose weights the trainer will send, in every rank; None in-process.

        All ranks enter and leave together. Rank 0 has the server.
        """
        check_model(model)
        if not self.uses_server(model):
            yield None
            return
        if self.config.vllm.sleep:  # it may wake up now
            free_cached_memory()
            barrier()
        own = self._served(model) if rank() == 0 else None
        # The address first: a server may take longer to start than ranks wait for a broadcast.
        with share_address(self._server) as address:
            sampler = own or sampler_of(self._settings(model), address["url"], address["key"])
            self._wait(sampler)
            yield sampler

    def _serve(self, model: str | Path) -> VllmSampler:
        """A sampler on the run's server, once it answers."""
        sampler = self._served(model)
        self._wait(sampler)
        return sampler

    def _served(self, model: str | Path) -> VllmSampler:
        """A sampler on the run's server, which serves this model from now on; it may be starting.

        It is always the same one: it knows whether the server sleeps.
        """
        from terrella.models.presets import model_folder

        folder = model_folder(model)
        if self._sampler is None:
            self.work.mkdir(parents=True, exist_ok=True)
            server = VllmServer(self._settings(model), folder, log=self.work / "vllm.log")
            self._open.callback(server.close)
            server.start()
            self._server, self._sampler = server, server.sampler()
        else:
            self._sampler.load_folder(folder)
        return self._sampler

    def _settings(self, model: str | Path) -> VllmServer.Config:
        """The server's settings; vLLM does not start with a longer context than the model's."""
        from terrella.models.presets import max_positions

        context = min(self.config.vllm.max_model_len, max_positions(model))
        return self.config.vllm.replace(max_model_len=context)

    def _wait(self, sampler: VllmSampler) -> None:
        if self._server is not None:
            self._server.wait_until_healthy()
        else:
            wait_until_healthy(sampler, self.config.vllm.start_seconds)
