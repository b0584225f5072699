"""verl's standalone rollout servers behind our `Sampler`: evaluation on all devices of a cluster.

Every `verl.tensor_parallel` devices are one vLLM server with the weights of a model folder. verl's
balancer sends a request to the server with the fewest, and all requests of a session to the same
one. Precision, context and kind of log-probabilities are those of `EngineConfig.vllm`, the rest is
`EngineConfig.verl`, so a key of verl's own that suits training also applies here.
    with open_servers(EngineConfig(engine="verl"), Path("runs/x/model")) as sampler: ...
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import ray
from omegaconf import OmegaConf
from verl.single_controller.ray.base import split_resource_pool
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import get_rollout_replica_class

from terrella.core.tokens import Sampled, TokenRequest
from terrella.engines.configs import EngineConfig
from terrella.engines.verl.agent_loop import ServerSampler
from terrella.engines.verl.compose import compose
from terrella.engines.verl.ray_session import ray_session
from terrella.engines.verl.verl_keys import server_keys
from terrella.engines.vllm.sampler import check_logprobs


@dataclass(frozen=True, slots=True)
class ClusterSampler:
    """`core.protocols.Sampler` on verl's servers, for any number of episodes at once."""

    servers: Any
    logprobs: Literal["raw", "processed"]
    context_tokens: int = 0
    """See `core.protocols.BoundedSampler`."""

    async def sample(self, request: TokenRequest) -> Sampled:
        check_logprobs(request, self.logprobs)
        session = request.session or uuid4().hex
        return await ServerSampler(self.servers, session=session).sample(request)

    def release(self, session: str) -> None:
        """Nothing to release: the servers evict from their prefix caches themselves."""


class ServerGroup(LLMServerManager):  # type: ignore[misc]
    """verl's server manager for servers that share the devices of a worker group, or have own."""

    def __init__(self, config: Any, pool: Any = None) -> None:
        """`pool` are the devices to share."""
        self.pool = pool
        replica = get_rollout_replica_class("vllm")
        # Ray may still hold the names of servers that have just ended.
        self.rollout_replica_class = partial(replica, name_suffix=uuid4().hex[:8])
        super().__init__(config=config)

    async def _initialize_llm_servers(self, start_rank: int | None = None) -> None:
        if self.pool is None:
            await super()._initialize_llm_servers(start_rank)
            return
        rollout = self.rollout_config
        pools = split_resource_pool(self.pool, rollout.tensor_model_parallel_size)
        self.rollout_replicas = [
            self.rollout_replica_class(
                replica_rank=rank,
                config=rollout,
                model_config=self.model_config,
                gpus_per_node=rollout.n_gpus_per_node,
            )
            for rank in range(len(pools))
        ]
        await asyncio.gather(
            *(
                replica.init_colocated(pool)
                for replica, pool in zip(self.rollout_replicas, pools, strict=True)
            )
        )
        self.server_handles = [replica.server_handle for replica in self.rollout_replicas]
        self.server_addresses = [replica.server_address for replica in self.rollout_replicas]

    def end(self) -> None:
        """End the servers and give their own devices back: the Ray session may go on."""
        for replica in self.rollout_replicas:
            for actor in (*replica.servers, *replica.workers):
                ray.kill(actor)
            if self.pool is None:
                for group in replica.resource_pool.get_placement_groups():
                    ray.util.remove_placement_group(group)
        ray.kill(self.global_load_balancer)


@contextlib.contextmanager
def open_servers(
    config: EngineConfig, model: Path, *, pool: Any = None
) -> Iterator[ClusterSampler]:
    """Start servers of the model in a folder; they end with the context.

    `pool` are the devices of a worker group that waits meanwhile.
    """
    composed = compose(server_keys(config, model), config.verl.keys)
    # Training sends weights to its servers; these read the folder, whatever key suits training.
    composed.actor_rollout_ref.rollout.load_format = "auto"
    OmegaConf.resolve(composed)
    with ray_session(composed):
        servers = ServerGroup.create(config=composed, pool=pool)
        try:
            yield ClusterSampler(
                servers.get_client(),
                config.vllm.logprobs,
                context_tokens=int(composed.actor_rollout_ref.rollout.max_model_len or 0),
            )
        finally:
            servers.end()
