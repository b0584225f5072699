"""A learner on accelerate: one process, DDP or FSDP2, as launched.

It computes packs like the trainers, with losses by name. There is no trainer inside: a caller
decides what is trained on, when the optimizer steps and at what rate.
    learner = TrlLearner(model, tokenizer, LearnerConfig(), head="token")
    learner.forward_backward(examples, "cross_entropy")
    learner.optim_step(AdamParams(learning_rate=1e-4))
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from terrella.algos.named_losses import NamedLoss, find_loss
from terrella.core.errors import ConfigError, EngineError
from terrella.core.protocols import Sampler
from terrella.core.tokens import AdamParams, Head, LearnerOutput, TrainExample
from terrella.engines.configs import LearnerConfig
from terrella.engines.device_memory import free_memory
from terrella.engines.example_columns import column_names, with_columns
from terrella.engines.local.local_sampler import LocalSampler, check_size
from terrella.engines.ranks import join_ranks
from terrella.engines.trl import learner_state
from terrella.engines.trl.arguments import (
    adapters,
    freeze_below,
    keep_full_precision,
    one_gpu_per_process,
)
from terrella.engines.trl.learner_data import check_same_data, gather_targets, share_out
from terrella.engines.trl.metrics import MetricAccumulator
from terrella.engines.trl.pack_passes import (
    backward_over,
    export_policy,
    packed,
    pad_packs,
    send_weights,
)
from terrella.engines.trl.packs import Pack, read_pack, target_logprobs
from terrella.engines.trl.sampling_mode import resharded, sampling_mode
from terrella.engines.trl.tree_attention import attention_of, use_attention
from terrella.engines.trl.value_head import attach_value_head, chosen_values, head_weights


class TrlLearner:
    """See `core.protocols.Learner`."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: LearnerConfig,
        *,
        head: Head = "token",
        folder: Path | None = None,
        serve: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        seed: int = 0,
    ) -> None:
        """`folder` is where the model came from; it may hold a value head.

        `serve` opens a sampler with weights of its own (a vLLM server), or None if the model is
        sampled in this process. `seed` is that of new adapters.
        """
        one_gpu_per_process()
        join_ranks()
        self.config = config
        self.head = head
        self.tokenizer = tokenizer
        self._serve = serve
        self._open = contextlib.ExitStack()
        self.steps = 0
        """Optimizer steps so far."""
        # As the trainers do: the state of an earlier trainer may have another precision.
        AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerator = Accelerator(
            cpu=not torch.cuda.is_available(), mixed_precision="bf16" if config.bf16 else "no"
        )
        keep_full_precision(self.accelerator)
        module = _trainable(model, config, head, folder or Path(), seed)
        self.model, wrapped = self.accelerator.prepare(module, _optimizer(module))
        # Without accelerate's wrapper, which leaves out steps while a trainer accumulates.
        self.optimizer: Any = wrapped.optimizer
        self.policy: Any = self.accelerator.unwrap_model(self.model)
        self.policy.train()
        self._has_gradients = False
        self._is_sampled = False

    # --- passes -----------------------------------------------------------------------------------

    def forward(self, data: Sequence[TrainExample]) -> list[tuple[float, ...]]:
        """See `core.protocols.Learner`."""
        shares, packs = self._shared_packs(data, ())
        with torch.no_grad(), resharded(self.policy):
            outputs = [
                self._outputs(self.policy, pack)[0] for pack in pad_packs(self.accelerator, packs)
            ]
        return gather_targets(self.accelerator, data, shares, outputs)

    def forward_backward(
        self, data: Sequence[TrainExample], loss: str, **knobs: float | str
    ) -> LearnerOutput:
        """See `core.protocols.Learner`."""
        named = find_loss(loss, self.head)
        settings = named.settings(knobs)
        names = named.reads(column_names(data), settings) if data else []
        shares, packs = self._shared_packs(data, names)
        totals = MetricAccumulator((*named.metrics, *(["entropy"] * (self.head == "token"))))
        outputs: list[Tensor] = []

        def pack_loss(model: Any, pack: Pack) -> Tensor:
            found, extra = self._outputs(model, pack)
            outputs.append(found.detach())
            return _counted_loss(named, settings, found, pack, totals, extra)

        self._has_gradients = True
        total = backward_over(self.accelerator, self.model, packs, pack_loss)
        return LearnerOutput(
            loss=float(self.accelerator.reduce(total, "mean")),
            metrics=totals.gather(self.accelerator, keep_empty=False),
            outputs=gather_targets(self.accelerator, data, shares, outputs),
        )

    def optim_step(self, adam: AdamParams) -> dict[str, float]:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        if not self._has_gradients:
            raise EngineError("learner", "there is no gradient", "call forward_backward first")
        limit = adam.max_grad_norm or math.inf
        norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), limit))
        if not math.isfinite(norm):
            self._drop_gradients()
            raise EngineError("learner", f"the norm of the gradient is {norm}; no step was taken")
        for group in self.optimizer.param_groups:
            group["lr"] = adam.learning_rate
            group["betas"] = (adam.beta1, adam.beta2)
            group["eps"] = adam.eps
            group["weight_decay"] = adam.weight_decay if group["decays"] else 0.0
        self.optimizer.step()
        self._drop_gradients()
        self.steps += 1
        return {"grad_norm": norm}

    def _drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self._has_gradients = False

    def _shared_packs(
        self, data: Sequence[TrainExample], names: Sequence[str]
    ) -> tuple[list[slice], list[Pack]]:
        """Which examples each process computes, and the packs of this one."""
        self._refuse_while_sampled()
        check_same_data(self.accelerator, data)
        shares = share_out(data, processes=self.accelerator.num_processes)
        packs = packed(
            self.policy,
            with_columns(data, names)[shares[self.accelerator.process_index]],
            self.accelerator.device,
            max_tokens=self.config.pack_tokens,
            share_prefix=self.config.share_prefix,
        )
        return shares, packs

    def _outputs(self, model: Any, pack: Pack) -> tuple[Tensor, dict[str, Tensor]]:
        """Log-probabilities or values of a pack's targets, and further metrics of them."""
        with self.accelerator.autocast():
            output = read_pack(model, pack, attention=attention_of(self.policy))
        if self.head == "value":
            return chosen_values(output["values"][0], pack.targets_M), {}
        logprobs, entropy = target_logprobs(output, pack, temperature=self.config.temperature)
        return logprobs, {"entropy": entropy}

    # --- weights ----------------------------------------------------------------------------------

    def save_state(self, folder: Path) -> None:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        if self._has_gradients:
            raise EngineError(
                "learner", "gradients are not saved", "call optim_step before save_state"
            )
        learner_state.save(
            folder, self.accelerator, self.policy, self.optimizer, self._facts(), self.steps
        )

    def load_state(self, folder: Path) -> None:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        self._drop_gradients()
        self.steps = learner_state.load(
            folder, self.accelerator, self.policy, self.optimizer, self._facts()
        )

    def _facts(self) -> dict[str, Any]:
        config = self.config
        return {
            "head": self.head,
            "value_heads": config.value_heads if self.head == "value" else 0,
            "lora_rank": config.lora_rank,
            "lora_alpha": config.alpha,
            "top_layers": config.top_layers,
        }

    def export(self, folder: Path) -> None:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        head = head_weights(self.policy) if self.head == "value" else None
        export_policy(self.accelerator, self.policy, self.tokenizer, folder, value_head=head)

    @contextlib.contextmanager
    def sampler(self) -> Iterator[Sampler]:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        if self.head == "value":
            raise ConfigError("sampler", "a model with a value head writes no tokens")
        server = self._server
        self._is_sampled = True
        try:
            with self._sampled_here() if server is None else self._sampled_by(server) as sampler:
                yield sampler
        finally:
            self._is_sampled = False

    @functools.cached_property
    def _server(self) -> Any:
        """The sampler on a server, from the first use until the learner is closed, or None."""
        return self._open.enter_context(self._serve())

    @contextlib.contextmanager
    def _sampled_here(self) -> Iterator[Sampler]:
        """Processes leave together: one that trains would wait for collectives of the others."""
        check_size(self.policy)
        local = LocalSampler(
            self.policy,
            device=self.accelerator.device,
            dtype=torch.bfloat16 if self.config.bf16 else None,
        )
        with sampling_mode(self.policy):
            yield local
            local.forget()
            self.accelerator.wait_for_everyone()

    @contextlib.contextmanager
    def _sampled_by(self, server: Any) -> Iterator[Sampler]:
        send_weights(self.accelerator, self.policy, server)
        yield server
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            server.sleep()  # its memory is free for training

    def _refuse_while_sampled(self) -> None:
        if self._is_sampled:
            raise EngineError("learner", "its sampler is open", "leave `with learner.sampler()`")

    def close(self) -> None:
        """Free the memory of weights and optimizer, and leave the server."""
        self._open.close()
        self.model = self.optimizer = self.policy = None
        # It empties torch's cache first and lets go of the model then.
        self.accelerator.free_memory()
        free_memory()


def _counted_loss(
    named: NamedLoss,
    settings: dict[str, Any],
    outputs: Tensor,
    pack: Pack,
    totals: MetricAccumulator,
    extra: dict[str, Tensor],
) -> Tensor:
    """The loss of a pack; its metrics are added to the totals."""
    if not len(pack.targets_M):  # an empty pack: a zero gradient for all parameters
        return outputs.sum()
    loss, metrics = named.compute(outputs, pack.columns, settings)
    for name, values in {**metrics, **extra}.items():
        totals.add(name, values)
    return loss


def _trainable(model: Any, config: LearnerConfig, head: Head, folder: Path, seed: int) -> Any:
    """The model with adapters and value head, without dropout: what is read is what is trained."""
    use_attention(model, config.attention)
    freeze_below(model, config.top_layers)
    if config.gradient_checkpointing:
        # The reentrant kind ignores keyword arguments, and a pack's attention is one.
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if config.lora_rank:
        from peft import get_peft_model

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = get_peft_model(model, adapters(model, config))
    if head == "value":
        attach_value_head(model, folder, heads=config.value_heads, seed=seed)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    return model


def _optimizer(model: Any) -> torch.optim.Optimizer:
    """AdamW; its numbers come with each step."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in trained if (weight.ndim > 1) is decays], "decays": decays}
        for decays in (True, False)
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], fused=True)
