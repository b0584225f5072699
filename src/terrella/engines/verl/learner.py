"""A learner on verl: a Ray worker group with the verbs of `core.protocols.Learner`.

The command holds the data and decides on each step; the workers hold the sharded model and its
optimizer. Folders must be on storage that all nodes share.
    opened = open_learner(engine, samplers, model, config, head="token", work=work, seed=0)
    with opened as learner:
        learner.forward_backward(examples, "cross_entropy")
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from tensordict import NonTensorData, TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

from terrella.algos.named_losses import EXAMPLE, WEIGHT, find_loss
from terrella.core.errors import ConfigError, EngineError
from terrella.core.files import read_json, replace_folder, scratch_folder, write_json
from terrella.core.integrity import check_folder, write_listing
from terrella.core.protocols import Sampler
from terrella.core.tokens import AdamParams, Head, LearnerOutput, TrainExample
from terrella.engines.configs import EngineConfig, LearnerConfig
from terrella.engines.example_columns import column_names, with_columns
from terrella.engines.sampling import SamplerFactory
from terrella.engines.verl.compose import compose
from terrella.engines.verl.learner_worker import LearnerWorker, LossByName, column
from terrella.engines.verl.limits import check_learner
from terrella.engines.verl.ray_session import ray_session
from terrella.engines.verl.servers import open_servers
from terrella.engines.verl.verl_keys import learner_keys

FACTS = "learner.json"
COLOCATED = 2
"""Groups of processes that share the devices: the workers, and servers of their weights."""


class VerlLearner:
    """See `core.protocols.Learner`."""

    def __init__(
        self,
        workers: Any,
        config: LearnerConfig,
        *,
        head: Head,
        folder: Path,
        serve: Any,
    ) -> None:
        """`folder` is for exports that are sampled; `serve` opens a sampler of such a folder."""
        self.workers = workers
        self.config = config
        self.head = head
        self.folder = folder
        self.steps = 0
        """Optimizer steps so far."""
        self._serve = serve
        self._has_gradients = False
        self._is_sampled = False

    # --- passes -----------------------------------------------------------------------------------

    def forward(self, data: Sequence[TrainExample]) -> list[tuple[float, ...]]:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        if not data:
            return []
        batch, order = self._batch(with_columns(data, ()), ())
        tu.assign_non_tensor(batch, compute_loss=False)
        return _in_order(data, order, self.workers.outputs(batch))

    def forward_backward(
        self, data: Sequence[TrainExample], loss: str, **knobs: float | str
    ) -> LearnerOutput:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        named = find_loss(loss, self.head)
        settings = named.settings(knobs)
        self._has_gradients = True
        if not data:
            return LearnerOutput(loss=0.0, metrics={}, outputs=[])
        names = named.reads(column_names(data), settings)
        columns = tuple(sorted({*names, WEIGHT, EXAMPLE}))
        batch, order = self._batch(with_columns(data, names), columns)
        self.workers.use_loss(LossByName(name=loss, settings=settings, columns=columns))
        answers = self.workers.add_gradient(batch)
        return LearnerOutput(
            loss=answers[0]["loss"],
            metrics=_means(answers[0]["totals"]),
            outputs=_in_order(data, order, answers),
        )

    def optim_step(self, adam: AdamParams) -> dict[str, float]:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        if not self._has_gradients:
            raise EngineError("learner", "there is no gradient", "call forward_backward first")
        group = {
            "lr": adam.learning_rate,
            "betas": (adam.beta1, adam.beta2),
            "eps": adam.eps,
            "weight_decay": adam.weight_decay,
        }
        norm = self.workers.adam_step(group, adam.max_grad_norm or math.inf)[0]
        self._has_gradients = False
        if not math.isfinite(norm):
            raise EngineError("learner", f"the norm of the gradient is {norm}; no step was taken")
        self.steps += 1
        return {"grad_norm": norm}

    def _batch(
        self, data: Sequence[TrainExample], names: Sequence[str]
    ) -> tuple[TensorDict, list[int]]:
        """The examples as verl's batch, and which example each row is, -1 for one that fills up.

        Every rank gets as many rows, with about as many tokens.
        """
        ranks = self.workers.world_size
        fillers = -len(data) % ranks
        rows = [*data, *[_filler(data[0], names)] * fillers]
        sizes = [len(row.prompt_ids) + len(row.completion_ids) for row in rows]
        shares = get_seqlen_balanced_partitions(sizes, ranks, equal_size=True)
        order = [row for share in shares for row in share]
        batch = _nested([rows[row] for row in order], names)
        tu.assign_non_tensor(
            batch,
            temperature=self.config.temperature,
            calculate_entropy=self.head == "token",
            max_token_len_per_gpu=max(self.config.pack_tokens, *sizes),
            use_dynamic_bsz=True,
            global_token_num=NonTensorData(sizes),
        )
        return batch, [row if row < len(data) else -1 for row in order]

    # --- weights ----------------------------------------------------------------------------------

    def save_state(self, folder: Path) -> None:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        if self._has_gradients:
            raise EngineError(
                "learner", "gradients are not saved", "call optim_step before save_state"
            )
        fresh = scratch_folder(folder).resolve()
        fresh.mkdir(parents=True)
        self.workers.save_checkpoint(str(fresh), global_step=self.steps)
        write_json(fresh / FACTS, {**self._facts(), "steps": self.steps})
        write_listing(fresh)
        replace_folder(fresh, folder)

    def load_state(self, folder: Path) -> None:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        if not (folder / FACTS).is_file():
            raise EngineError(str(folder), "there is no saved state", "check the path")
        check_folder(folder)
        saved = read_json(folder / FACTS)
        steps = int(saved.pop("steps"))
        if saved != self._facts():
            raise EngineError(
                str(folder), f"is the state of another learner: {saved} instead of {self._facts()}"
            )
        self.workers.load_checkpoint(str(folder.resolve()))
        self.workers.optimizer_zero_grad()
        self._has_gradients = False
        self.steps = steps

    def _facts(self) -> dict[str, Any]:
        return {
            "head": self.head,
            "lora_rank": self.config.lora_rank,
            "lora_alpha": self.config.alpha,
            "ranks": self.workers.world_size,
        }

    def export(self, folder: Path) -> None:
        """See `core.protocols.Learner`."""
        self._refuse_while_sampled()
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.workers.export(str(folder.resolve()))

    @contextlib.contextmanager
    def sampler(self) -> Iterator[Sampler]:
        """See `core.protocols.Learner`. The weights reach the servers as an exported folder."""
        if self.head == "value":
            raise ConfigError("sampler", "a model with a value head writes no tokens")
        self.export(self.folder)
        self._is_sampled = True
        try:
            self.workers.to("cpu")  # the servers need the memory of the devices
            with self._serve(self.folder) as sampler:
                yield sampler
            self.workers.to("device")
        finally:
            self._is_sampled = False

    def _refuse_while_sampled(self) -> None:
        if self._is_sampled:
            raise EngineError("learner", "its sampler is open", "leave `with learner.sampler()`")


@contextlib.contextmanager
def open_learner(
    engine: EngineConfig,
    samplers: SamplerFactory,
    model: Path,
    config: LearnerConfig,
    *,
    head: Head,
    work: Path,
    seed: int,
) -> Iterator[VerlLearner]:
    """Start the workers on Ray; they end with the context."""
    from verl.single_controller.ray import RayResourcePool

    check_learner(config, "learner", head=head)
    keys = learner_keys(config, engine.verl, model, head, seed=seed)
    composed = compose(keys, engine.verl.keys)
    with ray_session(composed):
        trainer = composed.trainer
        pool = RayResourcePool(
            process_on_nodes=[trainer.n_gpus_per_node] * trainer.nnodes,
            max_colocate_count=COLOCATED,
        )
        workers = _start_workers(composed, head, pool)
        try:
            workers.load(str(model))

            def serve(folder: Path) -> Any:
                if engine.sampler == "local":
                    return samplers.open(folder)
                return open_servers(engine, folder, pool=pool)

            folder = work.resolve() / "sampled"
            yield VerlLearner(workers, config, head=head, folder=folder, serve=serve)
        finally:
            for worker in workers.workers:
                ray.kill(worker)
            for group in pool.get_placement_groups():
                ray.util.remove_placement_group(group)


def _start_workers(composed: Any, head: Head, pool: Any) -> Any:
    from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup

    config = worker_config(composed, head)
    return RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=RayClassWithInitArgs(ray.remote(LearnerWorker), config=config),
        device_name=composed.trainer.device,
    )


def worker_config(composed: Any, head: Head) -> Any:
    """What a worker is built from: verl's actor, or its critic for a value head."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine_workers import TrainingWorkerConfig

    section = composed.actor_rollout_ref.actor if head == "token" else composed.critic
    role = omega_conf_to_dataclass(section)
    model = (
        omega_conf_to_dataclass(composed.actor_rollout_ref.model) if head == "token" else role.model
    )
    return TrainingWorkerConfig(
        model_type="language_model" if head == "token" else "value_model",
        model_config=model,
        engine_config=role.engine,
        optimizer_config=role.optim,
        checkpoint_config=role.checkpoint,
    )


def _filler(like: TrainExample, names: Sequence[str]) -> TrainExample:
    """An example without targets: every rank needs as many rows."""
    return TrainExample(
        prompt_ids=like.prompt_ids[:1],
        completion_ids=like.prompt_ids[:1],
        mask=[False],
        columns={name: [0.0] for name in names},
    )


def _nested(rows: Sequence[TrainExample], names: Sequence[str]) -> TensorDict:
    fields: dict[str, list[torch.Tensor]] = {}
    for row in rows:
        prompt = torch.tensor(row.prompt_ids, dtype=torch.long)
        completion = torch.tensor(row.completion_ids, dtype=torch.long)
        mask = torch.tensor([int(target) for target in row.mask])
        whole = torch.cat([prompt, completion])
        made = {
            "prompts": prompt,
            "responses": completion,
            "input_ids": whole,
            "position_ids": torch.arange(len(whole)),
            "loss_mask": mask,
            "response_mask": mask,
            **{column(name): torch.tensor(row.columns[name]).float() for name in names},
        }
        for name, tensor in made.items():
            fields.setdefault(name, []).append(tensor)
    nested = {
        name: torch.nested.as_nested_tensor(tensors, layout=torch.jagged)
        for name, tensors in fields.items()
    }
    return TensorDict(nested, batch_size=len(rows))


def _in_order(
    data: Sequence[TrainExample], order: Sequence[int], answers: Sequence[dict[str, Any]]
) -> list[tuple[float, ...]]:
    """The outputs in the order of the data, 0.0 on tokens that are no targets."""
    rows = [row for answer in answers for row in answer["outputs"]]
    by_example = {example: row for example, row in zip(order, rows, strict=True) if example >= 0}
    return [
        tuple(
            number if is_target else 0.0
            for number, is_target in zip(by_example[index], example.mask, strict=True)
        )
        for index, example in enumerate(data)
    ]


def _means(totals: dict[str, float]) -> dict[str, float]:
    """Means of the metrics that have values."""
    names = [name.removesuffix("/sum") for name in totals if name.endswith("/sum")]
    return {
        name: totals[f"{name}/sum"] / totals[f"{name}/count"]
        for name in names
        if totals[f"{name}/count"]
    }
