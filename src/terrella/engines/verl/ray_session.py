"""Ray for the time of a block: the cluster there is, or one of our own on loopback.

Blocks may be nested, as a sampler of a learner's weights is in a learner; the outermost one ends
the connection, and with it all actors and placement groups of the command.
    with ray_session(composed): ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import ray

from terrella.core.errors import EngineError


@contextlib.contextmanager
def ray_session(composed: Any) -> Iterator[None]:
    """`composed` is verl's config; its `ray_kwargs` are those of `ray.init`."""
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    owner = not ray.is_initialized()
    if owner:
        options: Any = OmegaConf.to_container(composed.ray_kwargs.get("ray_init", {}), resolve=True)
        environment = OmegaConf.to_container(OmegaConf.create(get_ppo_ray_runtime_env(composed)))
        ray.init(**{**options, "runtime_env": environment})
    try:
        yield
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[-500:]
        raise EngineError("verl", reason, "the log above names the process") from error
    finally:
        if owner:
            ray.shutdown()
