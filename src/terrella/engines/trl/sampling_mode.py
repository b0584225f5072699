"""Makes the trained model ready to be sampled from in this process, and undoes it for training.

Under FSDP2 each process holds a part of every weight. A forward pass would gather the parts, which
takes all processes, and episodes of different lengths would wait for each other forever. So the
weights are gathered once, stay whole on the device while episodes are sampled, and are freed again.
Nothing is copied, and no forward pass communicates.
    with sampling_mode(policy):
        episodes = rollout.run(LocalSampler(policy), tasks, group_size=8, seed=0)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.distributed.fsdp import FSDPModule

from terrella.engines.trl.critic import NAME as CRITIC
from terrella.models.grouped_attention import GROUPED


@contextlib.contextmanager
def sampling_mode(policy: Any) -> Iterator[None]:
    """Whole weights, masked attention, no gradient checkpointing. All processes enter together."""
    was_training = policy.training
    attention = policy.config._attn_implementation
    policy.eval()  # in training mode gradient checkpointing drops the key/value cache
    if attention == "flex_attention":  # it takes a pack's block mask, not the sampler's mask
        policy.set_attn_implementation(GROUPED)
    try:
        with _gathered(policy):
            yield
    finally:
        policy.set_attn_implementation(attention)
        policy.train(was_training)


@contextlib.contextmanager
def resharded(policy: Any) -> Iterator[None]:
    """Around forward passes without a backward pass, which would have freed whole weights.

    FSDP2 keeps those of the last layers, in the precision that it computes in. They would be taken
    for the model's parameters when gradients are clipped or states are saved.
    """
    try:
        yield
    finally:
        for module in policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


@contextlib.contextmanager
def _gathered(policy: Any) -> Iterator[None]:
    """FSDP2's weights, whole on this device. The critic is left out: sampling needs no values."""
    modules: list[Any] = [
        module
        for name, module in policy.named_modules()
        if isinstance(module, FSDPModule) and not name.startswith(f"{CRITIC}.")
    ]
    if not modules:
        yield
        return
    # FSDP2 has no getter for `set_reshard_after_forward`. accelerate sets it layer by layer, and
    # the root decides on its own when it is initialised, which is otherwise in its first pass.
    policy._get_fsdp_state()._lazy_init()
    groups = [group for each in modules for group in each._get_fsdp_state()._fsdp_param_groups]
    meshes = [group.post_forward_mesh_info for group in groups]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.reshard()
        for group, mesh in zip(groups, meshes, strict=True):
            group.post_forward_mesh_info = mesh
