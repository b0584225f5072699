"""A value head for learners: one number before each target, in place of its log-probability.

The head is PPO's critic on the model's own hidden states. The model's logits are not computed:
with a large vocabulary they would take most of the memory.
    attach_value_head(model, Path("runs/x/critic"))
    values = model(...)["values"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from terrella.engines.trl.critic import NAME, Critic, ValuedOutput
from terrella.models.export import VALUE_HEAD, whole_tensor

FURTHER_STD = 0.02
"""Deviation of the weights of further heads: heads that start alike would stay alike."""


class ValueHead(Critic):
    """Values at the positions whose logits are asked for, by one head or several."""

    _positions: Tensor | None = None

    def __init__(self, decoder: nn.Module, width: int, *, heads: int, seed: int) -> None:
        super().__init__(decoder, width, "shared")
        if heads > 1:
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.randn(heads, width, generator=generator) * FURTHER_STD
            drawn[0] = 0.0
            self.weight = nn.Parameter(drawn.to(self.weight))
            self.bias = nn.Parameter(self.bias.new_zeros(heads))

    def forward(self, hidden: Tensor) -> Tensor:
        """Values of hidden states, [..., heads] if there are several; in fp32."""
        if len(self.bias) == 1:
            return super().forward(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            values = functional.linear(hidden.float(), self.weight.float(), self.bias.float())
        return values.clone()  # as one head's

    def skip_logits(self, model: nn.Module, arguments: Any, options: dict[str, Any]) -> Any:
        """Forward hook before the model: keep the positions and ask for no logits."""
        self._positions = options["logits_to_keep"]
        return arguments, {**options, "logits_to_keep": self._positions[:0]}

    def add_values(
        self, policy: nn.Module, arguments: Any, options: dict[str, Any], output: Any
    ) -> ValuedOutput:
        """Forward hook of the model: values instead of logits."""
        hidden, self._hidden = self._hidden, None
        positions, self._positions = self._positions, None
        assert hidden is not None
        return ValuedOutput(values=self(hidden[:, positions]))


def attach_value_head(model: Any, folder: Path, *, heads: int = 1, seed: int = 0) -> None:
    """Make a value head part of a causal LM, with or without adapters, before it is wrapped.

    It is read from `folder` if that has one. Otherwise the first head starts at zero, and further
    ones near it, drawn with the seed.
    """
    decoder = model.get_decoder()
    head = ValueHead(decoder, model.config.hidden_size, heads=heads, seed=seed)
    if (folder / VALUE_HEAD).is_file():
        head.load_state_dict(load_file(folder / VALUE_HEAD))
    model.add_module(NAME, head)
    decoder.register_forward_hook(head.keep_hidden)
    model.register_forward_pre_hook(head.skip_logits, with_kwargs=True)
    model.register_forward_hook(head.add_values, with_kwargs=True)
    output = model.get_output_embeddings()
    if output is not None and output.weight is not model.get_input_embeddings().weight:
        output.requires_grad_(False)  # it has no part in values, and DDP waits for all gradients


def chosen_values(values: Tensor, targets_M: Tensor) -> Tensor:
    """The value of each target; with several heads, of the head that its token names."""
    if values.ndim == 1:
        return values
    return values.gather(1, (targets_M % values.shape[1])[:, None])[:, 0]


def head_weights(model: Any) -> dict[str, Tensor]:
    """The weights of the value head. Collective under FSDP2: every process must call it."""
    head: nn.Module = model.get_submodule(NAME)
    with torch.no_grad():
        return {
            name: whole_tensor(weight).cpu().contiguous()
            for name, weight in head.named_parameters()
        }
