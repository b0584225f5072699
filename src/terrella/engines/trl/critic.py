"""PPO's critic: an estimate of the return at every token that the model writes.

It is a submodule of the policy, so that the optimizer, DDP, FSDP2 and checkpoints see its
parameters. It runs in the policy's own forward pass: a hook adds `values` to the output.
Exports leave it out (`MergedWeights(policy, without=NAME)`).
    attach_critic(policy, "shared")
    values = policy(...)["values"]
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.utils import ModelOutput

from terrella.algos.advantages import gae, whiten
from terrella.engines.trl.packs import Pack

NAME = "critic"


@dataclass
class ValuedOutput(ModelOutput):  # type: ignore[misc]
    """What a policy with a critic returns.

    A class of its own: FSDP2 rebuilds outputs when it casts them, from their declared fields.
    """

    logits: Tensor | None = None
    values: Tensor | None = None


class Critic(nn.Module):
    """A value head, on the policy's hidden states or on those of a trunk of its own."""

    def __init__(self, decoder: nn.Module, width: int, kind: Literal["shared", "separate"]) -> None:
        """The head starts at zero; a separate trunk starts as a copy of the policy's."""
        super().__init__()
        weight = next(decoder.parameters())
        self.trunk = copy.deepcopy(decoder) if kind == "separate" else None
        self.weight = nn.Parameter(weight.new_zeros(1, width))
        self.bias = nn.Parameter(weight.new_zeros(1))
        self._hidden: Tensor | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        """Values of hidden states, in fp32, also under autocast."""
        with torch.autocast(hidden.device.type, enabled=False):
            values = functional.linear(hidden.float(), self.weight.float(), self.bias.float())
        return values[..., 0].clone()  # FSDP2 warns of outputs that are views

    def keep_hidden(self, decoder: nn.Module, arguments: Any, output: Any) -> None:
        """Forward hook of the policy's decoder: keep its hidden states for the head."""
        self._hidden = output.last_hidden_state

    def add_values(
        self, policy: nn.Module, arguments: Any, options: dict[str, Any], output: Any
    ) -> Any:
        """Forward hook of the policy: add values at the positions whose logits were computed."""
        hidden, self._hidden = self._hidden, None
        if options.get("use_cache", True):
            return output  # sampling needs no values
        if self.trunk is not None:
            inputs = {name: value for name, value in options.items() if name != "logits_to_keep"}
            hidden = self.trunk(**inputs).last_hidden_state
        assert hidden is not None
        return ValuedOutput(logits=output.logits, values=self(hidden[:, options["logits_to_keep"]]))


def attach_critic(policy: Any, kind: Literal["shared", "separate"]) -> Critic:
    """Make a critic part of a causal LM, with or without adapters.

    Call it before the model is wrapped and before its optimizer is made.
    """
    decoder = policy.get_decoder()
    critic = Critic(decoder, policy.config.hidden_size, kind)
    policy.add_module(NAME, critic)
    if kind == "shared":
        decoder.register_forward_hook(critic.keep_hidden)
    policy.register_forward_hook(critic.add_values, with_kwargs=True)
    return critic


def set_apart(optimizer: torch.optim.Optimizer, critic: Critic, learning_rate: float) -> None:
    """Give the critic's parameters groups of their own, with this learning rate.

    Before the first step, and before a scheduler reads the rates.
    """
    own = {id(parameter) for parameter in critic.parameters()}
    for group in list(optimizer.param_groups):
        moved = [each for each in group["params"] if id(each) in own]
        if not moved:
            continue
        group["params"] = [each for each in group["params"] if id(each) not in own]
        optimizer.add_param_group({**group, "params": moved, "lr": learning_rate})


def add_gae(packs: Sequence[Pack], lengths: Sequence[int], *, gamma: float, lam: float) -> None:
    """Fill `advantage` and `return` of packs from their `reward` and `value`.

    `lengths` are the numbers of model tokens of the examples, in pack order.
    """
    if not lengths:
        return
    written = torch.tensor(lengths)
    mask = torch.arange(max(lengths)) < written[:, None]
    rewards = _by_example([pack.columns["reward"] for pack in packs], mask)
    values = _by_example([pack.columns["value"] for pack in packs], mask)
    estimates = gae(rewards, values, mask, gamma=gamma, lam=lam)
    sizes = [len(pack.targets_M) for pack in packs]
    for name, padded in zip(("advantage", "return"), estimates, strict=True):
        for pack, column in zip(packs, torch.split(padded[mask], sizes), strict=True):
            pack.columns[name] = column.to(pack.targets_M.device)


def whiten_packs(packs: Sequence[Pack], tokens: float, accelerator: Any) -> None:
    """Normalise advantages over the batch of all processes, which has so many tokens."""
    columns = [pack.columns["advantage"] for pack in packs]
    sums = [sum(float((column**power).sum()) for column in columns) for power in (1, 2)]
    total = accelerator.reduce(torch.tensor(sums).to(accelerator.device))
    mean, square = (total / max(tokens, 1.0)).tolist()
    for pack, column in zip(packs, columns, strict=True):
        pack.columns["advantage"] = whiten(column, mean=mean, square=square)


def _by_example(columns: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Columns of packs as one matrix: a row per example, its model tokens only, right-padded."""
    padded = torch.zeros(mask.shape)
    padded[mask] = torch.cat([column.cpu().float() for column in columns])
    return padded
