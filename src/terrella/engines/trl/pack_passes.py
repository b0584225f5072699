"""Passes over packs on accelerate, and exports: what trainers and learners share.

Losses of packs are summed; their weights add up over the batch and over all processes, so that
results do not depend on packing or on the number of processes.
    packs = packed(policy, examples, accelerator.device, max_tokens=2048)
    total = backward_over(accelerator, model, packs, pack_loss)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from terrella.core.tokens import TrainExample
from terrella.engines.device_memory import free_cached_memory
from terrella.engines.trl.critic import NAME as CRITIC
from terrella.engines.trl.packs import Pack, pack_episodes
from terrella.engines.trl.tree_attention import attention_of
from terrella.models.export import MergedWeights, write_folder


def packed(
    model: Any,
    examples: Sequence[TrainExample],
    device: Any,
    *,
    max_tokens: int,
    share_prefix: bool = True,
) -> list[Pack]:
    """Examples as packs on a device. Prompts are shared where that is faster for this model."""
    # Flex attention skips masked blocks, so sharing a prompt always pays there.
    flex = attention_of(model).implementation == "flex_attention"
    width = None if flex else model.config.hidden_size
    packs = pack_episodes(examples, max_tokens=max_tokens, share_prefix=share_prefix, width=width)
    return [pack.to(device) for pack in packs]


def pad_packs(accelerator: Any, packs: Sequence[Pack]) -> list[Pack]:
    """Add empty packs until every process has the same number of them.

    Otherwise a collective operation would wait forever for a process that has finished.
    """
    if accelerator.num_processes == 1:
        return list(packs)
    count = torch.tensor([len(packs)], device=accelerator.device)
    most = int(accelerator.gather(count).max())
    return [*packs, *[Pack.empty(accelerator.device)] * (most - len(packs))]


def backward_over(
    accelerator: Any, model: Any, packs: Sequence[Pack], loss_of: Callable[[Any, Pack], Tensor]
) -> Tensor:
    """Run backward over all packs. The mean of the results over processes is the batch's loss.

    DDP exchanges gradients once, with the last pack. FSDP2 shares them out with every pack: until
    it does, each process holds the gradient of the whole model.
    """
    total: Tensor = torch.zeros((), device=accelerator.device)
    packs = pad_packs(accelerator, packs)
    for number, pack in enumerate(packs, 1):
        exchange = number == len(packs) or accelerator.is_fsdp2
        with contextlib.nullcontext() if exchange else accelerator.no_sync(model):
            loss = loss_of(model, pack)
            # Gradients are averaged over processes, but the losses are weighted to be summed.
            accelerator.backward(loss * accelerator.num_processes)
        total += loss.detach() * accelerator.num_processes
    return total


def plain_weights(policy: Any) -> MergedWeights:
    """The weights of a plain causal LM: adapters merged, no critic."""
    return MergedWeights(policy, without=CRITIC)


def send_weights(accelerator: Any, policy: Any, sampler: Any) -> None:
    """Give a sampler the policy's weights: all processes gather them, and the main one sends.

    A copy in each process is filled by each process. A server that wakes up on shared GPUs needs
    what torch keeps of the last step there, and of gathering, which other processes are done with
    first.
    """
    shares_gpu = getattr(sampler, "sleeps", False)
    if shares_gpu:
        free_cached_memory()
    accelerator.wait_for_everyone()  # no process is still sampling, or holds memory
    weights = plain_weights(policy)
    if accelerator.is_main_process or getattr(sampler, "is_local", False):
        sampler.load_weights(weights)
    else:
        weights.on_host(keep=False)
        if shares_gpu:
            free_cached_memory()
    accelerator.wait_for_everyone()


def export_policy(
    accelerator: Any,
    policy: Any,
    tokenizer: Any,
    folder: Path,
    *,
    value_head: dict[str, Tensor] | None = None,
) -> None:
    """Write a plain Hugging Face folder: adapters merged, weights gathered, no critic.

    A value head is written to a file of its own beside them. All processes call it.
    """
    # On all processes, not only the main one: this gathers sharded weights.
    weights = plain_weights(policy).on_host(keep=accelerator.is_main_process)
    if accelerator.is_main_process:
        write_folder(policy, weights, tokenizer, folder, value_head=value_head)
    accelerator.wait_for_everyone()
