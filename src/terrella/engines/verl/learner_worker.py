"""The worker of a learner on verl: its Tinker worker with losses by name and AdamW per step.

The command sends a batch with the columns of the loss, verl shares it out over the ranks, and every
rank answers with plain lists. Gradients are averaged over ranks, but the losses are sums, hence
`dp_size`.
    workers.use_loss(LossByName(name="policy", settings=settings, columns=names))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from verl.single_controller.base.decorator import dispatch_lazy_compute_data_proto, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers_tinker import TinkerTrainingWorker
from verl.workers.utils.padding import no_padding_2_padding, response_from_nested

from terrella.algos.named_losses import find_loss
from terrella.core.tokens import Head
from terrella.engines.verl.workers import Method, ModelWorker, on_all_ranks
from terrella.models.export import VALUE_HEAD, MergedWeights, whole_tensor, write_folder
from terrella.models.foreign_code import SAFE

HEAD = "score"
"""The value head in verl's value models, which are token classifiers."""
TOTALS = ("/sum", "/count")
"""Endings of the numbers that a metric's mean is made from."""
OUTPUTS: dict[Head, str] = {"token": "log_probs", "value": "values"}
"""What verl calls the outputs of a model."""


def column(name: str) -> str:
    """The field of a column, apart from verl's own fields."""
    return f"column_{name}"


@dataclass(frozen=True, kw_only=True)
class LossByName:
    """A loss of `algos.named_losses`, as a function that verl sends to its workers."""

    name: str
    settings: dict[str, Any]
    columns: tuple[str, ...]

    def __call__(
        self, model_output: Any, data: Any, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, float]]:
        """The sum over targets, and for each metric its sum and its number of values."""
        named = find_loss(self.name)
        fields = ("response_mask", *map(column, self.columns))
        padded = data.select(*fields).to_padded_tensor()
        mask_BT = padded["response_mask"].bool()
        outputs = no_padding_2_padding(model_output[OUTPUTS[named.head]], data)
        # Adding zero keeps the graph: a micro-batch without targets still needs a backward pass.
        loss, metrics = 0.0 * outputs.sum(), dict.fromkeys(named.metrics, torch.zeros(0))
        if "entropy" in model_output:
            entropy = no_padding_2_padding(model_output["entropy"], data)
            metrics["entropy"] = entropy.detach()[mask_BT]
        if mask_BT.any():
            columns = {name: padded[column(name)][mask_BT] for name in self.columns}
            of_targets, found = named.compute(outputs[mask_BT].float(), columns, self.settings)
            loss, metrics = loss + of_targets, {**metrics, **found}
        totals = {}
        for name, values in metrics.items():
            totals[f"{name}/sum"] = float(values.sum())
            totals[f"{name}/count"] = float(values.numel())
        return loss * data["dp_size"], totals


class GroupedAdamW(torch.optim.AdamW):
    """AdamW whose weight decay leaves biases and norms alone."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        trained = [weight for weight in parameters if weight.requires_grad]
        groups = [
            {"params": [each for each in trained if (each.ndim > 1) is decays], "decays": decays}
            for decays in (True, False)
        ]
        super().__init__([group for group in groups if group["params"]], **options)


def _all_answers(worker_group: Any, output: list[Any]) -> list[Any]:
    """The answers of the ranks that have one, in the order of the data."""
    return [answer for answer in output if answer is not None]


def on_shared_data(method: Method) -> Method:
    """A method that each rank runs on its share of a batch; returns a list of their answers."""
    dispatch = partial(dispatch_lazy_compute_data_proto, "train")
    mode = {"dispatch_fn": dispatch, "collect_fn": _all_answers}
    made: Method = register(dispatch_mode=mode)(method)
    return made


class LearnerWorker(ModelWorker, TinkerTrainingWorker):  # type: ignore[misc]
    """One rank of a learner."""

    @on_all_ranks
    def load(self, folder: str) -> None:
        """Load the model. A value head is read from its folder, and starts at zero without one."""
        self.folder = Path(folder)
        self.reset()
        for module in self.engine.module.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            elif hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0
        if self.config.model_type == "value_model":
            file = self.folder / VALUE_HEAD
            saved = load_file(file) if file.is_file() else {}
            for name, weight in self._head().items():
                if name in saved:
                    _fill(weight, saved[name])

    def _head(self) -> dict[str, Any]:
        """Weight and bias of the value head, by their names in its file."""
        found = self.engine.module.named_parameters()
        parts = {name.rpartition(".")[2]: each for name, each in found if f"{HEAD}." in name}
        return parts

    @on_all_ranks
    def use_loss(self, loss: LossByName) -> None:
        self.loss_fn = loss

    @on_shared_data
    def outputs(self, data: Any) -> dict[str, Any] | None:
        """The outputs of this rank's rows, per completion token."""
        mask = data["response_mask"]
        answer = self.infer_batch(data)
        return None if answer is None else {"outputs": self._rows(answer, mask)}

    @on_shared_data
    def add_gradient(self, data: Any) -> dict[str, Any] | None:
        """As `outputs`, with a backward pass; loss and metrics are those of all ranks."""
        mask = data["response_mask"]
        answer = self.forward_backward(data)
        if answer is None:
            return None
        metrics = dict(tu.get(answer, "metrics"))
        return {
            "outputs": self._rows(answer, mask),
            "loss": float(metrics["loss"]),
            "totals": {
                name: _total(found) for name, found in metrics.items() if name.endswith(TOTALS)
            },
        }

    def _rows(self, answer: Any, mask: Tensor) -> list[list[float]]:
        head: Head = "value" if self.config.model_type == "value_model" else "token"
        return [row.tolist() for row in response_from_nested(answer[OUTPUTS[head]], mask).unbind()]

    @on_all_ranks
    def adam_step(self, group: dict[str, Any], clip: float) -> float:
        """Step with the gradients so far and drop them; returns their norm before clipping."""
        decay = group.pop("weight_decay")
        for each in self.engine.optimizer.param_groups:
            each.update(group, weight_decay=decay if each["decays"] else 0.0)
        self.engine.optimizer_config.clip_grad = clip
        with self.engine.train_mode(zero_grad_on_exit=True):
            norm: float = self.engine.optimizer_step()
        return norm

    @on_all_ranks
    def export(self, folder: str) -> None:
        """Write a plain causal LM: weights gathered, adapters merged, a value head beside them."""
        module, is_writer = self.engine.module, self.rank == 0
        value = self.config.model_type == "value_model"
        head = {name: whole_tensor(weight).cpu() for name, weight in self._head().items()}
        weights = MergedWeights(module, without=HEAD if value else "").on_host(keep=is_writer)
        if is_writer:
            plain = self._causal_lm(weights) if value else module
            tokenizer = self.model_config.tokenizer
            write_folder(
                plain,
                plain.state_dict() if value else weights,
                tokenizer,
                Path(folder),
                value_head=head if value else None,
            )
        torch.distributed.barrier()

    def _causal_lm(self, weights: dict[str, Tensor]) -> Any:
        """The model that a value model was made from, with its trained trunk."""
        from transformers import AutoModelForCausalLM

        plain = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32, **SAFE)
        plain.load_state_dict(weights, strict=False)
        return plain


def _fill(weight: Any, saved: Tensor) -> None:
    """Set a sharded parameter to a whole tensor."""
    with torch.no_grad():
        if hasattr(weight, "device_mesh"):
            from torch.distributed.tensor import distribute_tensor

            whole = saved.view(weight.shape).to(weight.device)
            weight.copy_(distribute_tensor(whole, weight.device_mesh, weight.placements))
        else:
            weight.copy_(saved.view(weight.shape))


def _total(found: Any) -> float:
    """The sum of a metric over ranks and micro-batches."""
    return sum(map(_total, found)) if isinstance(found, list | tuple) else float(found)
