"""verl's standalone rollout servers behind our `Sampler`: evaluation on all devices of a cluster.

Every `verl.tensor_parallel` devices are one vLLM server with the weights of a model folder. verl's
balancer sends a request to the server with the fewest, and all requests of a session to the same
one. Precision, context and kind of log-probabilities are those of `EngineConfig.vllm`, the rest is
`EngineConfig.verl`, so a key of verl's own that suits training also applies here.
    with open_servers(EngineConfig(engine="verl"), Path("runs/x/model")) as sampler: ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import ray

from terrella.core.tokens import Sampled, TokenRequest
from terrella.engines.configs import EngineConfig
from terrella.engines.verl.agent_loop import ServerSampler
from terrella.engines.verl.ray_session import ray_session
from terrella.engines.verl.verl_keys import compose, server_keys
from terrella.engines.vllm.sampler import check_logprobs


@dataclass(frozen=True, slots=True)
class ClusterSampler:
    """`core.protocols.Sampler` on verl's servers, for any number of episodes at once."""

    servers: Any
    logprobs: Literal["raw", "processed"]

    async def sample(self, request: TokenRequest) -> Sampled:
        check_logprobs(request, self.logprobs)
        session = request.session or uuid4().hex
        return await ServerSampler(self.servers, session=session).sample(request)

    def release(self, session: str) -> None:
        """Nothing to release: the servers evict from their prefix caches themselves."""


@contextlib.contextmanager
def open_servers(config: EngineConfig, model: Path) -> Iterator[ClusterSampler]:
    """Start servers of the model in a folder; they end with the context."""
    from omegaconf import OmegaConf
    from verl.workers.rollout.llm_server import LLMServerManager

    composed = compose(server_keys(config, model), config.verl.keys)
    # Training sends weights to its servers; these read the folder, whatever key suits training.
    composed.actor_rollout_ref.rollout.load_format = "auto"
    OmegaConf.resolve(composed)
    with ray_session(composed):
        manager = LLMServerManager.create(config=composed)
        try:
            yield ClusterSampler(manager.get_client(), config.vllm.logprobs)
        finally:
            _end(manager)


def _end(manager: Any) -> None:
    """End the servers and give their devices back: the session may go on."""
    for replica in manager.get_replicas():
        for actor in (*replica.servers, *replica.workers):
            ray.kill(actor)
        for group in replica.resource_pool.get_placement_groups():
            ray.util.remove_placement_group(group)
    ray.kill(manager.global_load_balancer)
