"""verl's trainers with verified rewards, masked episodes and a mismatch monitor.

`_compute_advantage` turns the episodes of a step into what it trains on, and stops the run when the
servers did not sample from the trainer's weights. Everything else (workers, FSDP, servers, weight
sync, checkpoints) is verl's. With schedule=async it is verl's `colocate_async`: worlds go on while
the model trains, and a reply that a weight sync interrupts is continued with the new weights.
    run_ppo(config, task_runner_class=VerifiedRunner)
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.utils.padding import response_to_nested

from terrella.algos.diagnostics import check_mismatch, check_numbers
from terrella.algos.episode_batch import EpisodeFacts
from terrella.core.errors import EngineError
from terrella.core.files import open_unlinked, read_json_lines
from terrella.engines.verl.losses import ActorLoss, critic_loss
from terrella.engines.verl.refill import plain
from terrella.engines.verl.rollout_spec import RolloutSpec
from terrella.engines.verl.train_batch import (
    TokenColumns,
    batch_metrics,
    episode_facts,
    group_indices,
    make_train_batch,
    mismatch,
    row_ages,
)
from terrella.engines.verl.workers import ModelWorker, PolicyWorker

COLUMNS = (
    "uid",
    "response_mask",
    "rollout_log_probs",
    "old_log_probs",
    "values",
    "entropy",
    "extra_fields",
)
SECONDS = {
    "seconds/generate": ("gen",),
    "seconds/sync": ("update_weights",),
    "seconds/save": ("save_checkpoint",),
    "seconds/train": ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"),
    "seconds/step": ("step",),
}
RENAMED = {
    "actor/loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/clip_share": "clip_share",
    "actor/kl": "kl",
    "actor/world_loss": "world_loss",
    "critic/value_loss": "value_loss",
}

POLL_SECONDS = 0.1
"""How often to check whether a batch is complete; verl's default of 2 s is long for small ones."""
RESUMES = "the log above names the server or process; the run resumes from its last checkpoint"


class VerifiedSteps(PPOTrainer):  # type: ignore[misc]
    """What verified episodes change in each of verl's trainers; see the module's docstring."""

    total_training_steps: int
    role_worker_mapping: dict[Any, Any]

    def __init__(self, config: Any) -> None:
        """Reads from the spec file what verl's config has no keys for."""
        super().__init__(config)
        spec = RolloutSpec.read(config.data.train_files)
        self.settings = spec.settings
        self.longest = spec.source().rollout.max_model_tokens
        self.budget = spec.budget
        self.metrics: dict[str, float] = {}
        self.has_signal = True
        """Whether any token of the step's batch counts in a loss."""
        self.metrics_file = Path(config.trainer.default_local_dir, "metrics.jsonl")
        self.replay_buffer.poll_interval = POLL_SECONDS
        self.replay_buffer.settings = self.settings
        self.replay_buffer.submit = self._submit_tasks

    def _init_resource_pool_mgr(self) -> None:
        """Train with our workers, which load models as the TRL engine does."""
        super()._init_resource_pool_mgr()
        self.role_worker_mapping = {
            role: ray.remote(ModelWorker if role == Role.Critic else PolicyWorker)
            for role in self.role_worker_mapping
        }

    def _setup(self) -> None:
        super()._setup()
        self.actor_rollout_wg.set_loss_fn(ActorLoss.of(self.settings))
        if self.use_critic:
            self.critic_wg.set_loss_fn(critic_loss(self.settings))

    def on_train_begin(self) -> None:
        """Restore the env steps of a resumed run from its metrics."""
        super().on_train_begin()
        rows = read_json_lines(self.metrics_file) if self.metrics_file.exists() else []
        done = [row["env_steps"] for row in rows if row["step"] < self.global_steps]
        if done:
            self.budget.played = int(done[-1]) - self.budget.spent

    def on_step_end(self) -> None:
        """End the run with a checkpoint when its budget of env steps is used up."""
        if self.budget.is_used_up and self.global_steps < self.total_training_steps:
            self._save_checkpoint()
            self.total_training_steps = self.global_steps
        super().on_step_end()

    def _submit_tasks(self, indices: Sequence[int]) -> None:
        """Start the groups of these tasks; the data loader does not move."""
        rows = collate_fn([self.train_dataset[index] for index in indices])
        rows["uid"] = np.array([str(uuid4()) for _ in indices], dtype=object)
        batch = tu.get_tensordict(rows)
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        self._submit_batch_to_rollout(batch)

    def _step_once(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super()._step_once(*arguments, **options)
        except RuntimeError as error:
            if "no materializable trajectories" not in str(error):
                raise
            raise EngineError(
                "rollout", f"every episode of step {self.global_steps} was lost", RESUMES
            ) from error

    def _balance_batch(self, batch: Any, *arguments: Any, **options: Any) -> Any:
        """Refuse a batch with missing episodes: a server or a process was lost.

        verl would fill it up and continue.
        """
        wanted = self.settings.groups * self.settings.group_size
        if len(batch) < wanted:
            lost = wanted - len(batch)
            message = f"{lost} of {wanted} episodes of step {self.global_steps} were lost"
            raise EngineError("rollout", message, RESUMES)
        return super()._balance_batch(batch, *arguments, **options)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Compute advantages, returns and loss weights.

        If sampler and trainer differ, this stops the run before the optimizer steps.
        """
        started = time.perf_counter()
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=list(COLUMNS)
        )
        nested = data["response_mask"]
        real = [not tag.get("is_padding", False) for tag in batch.tags]
        columns, records, entropy = _read(data)
        ages = row_ages(records, real, version=self.global_steps - 1)
        self._watch_mismatch(columns, ages)
        groups = group_indices(plain(data["uid"]), real)
        episodes = episode_facts(records, columns.mask_BT)
        train_batch = make_train_batch(
            columns, episodes, groups, self.settings, longest=self.longest
        )
        self.has_signal = train_batch.has_signal(self.settings)
        self._add_metrics(train_batch.rewards_PG, records, episodes, real)
        if columns.mask_BT.any():
            self.metrics["entropy"] = float(entropy[columns.mask_BT].mean())
        fields = {
            name: response_to_nested(column, nested)
            for name, column in train_batch.columns().items()
        }
        batch = tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict(fields, batch_size=len(batch)),
        )
        self.metrics["seconds/batch"] = time.perf_counter() - started
        return batch

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Leave the critic as it is when no token counts; see `_update_actor`."""
        return super()._update_critic(batch, metrics) if self.has_signal else batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Leave the policy as it is when no token counts.

        Its gradient would be zero, but AdamW's momentum would move it on. The step counts.
        """
        if self.has_signal:
            return super()._update_actor(batch, metrics)
        metrics.update({"actor/loss": 0.0, "actor/grad_norm": 0.0})
        return batch

    def _watch_mismatch(self, columns: TokenColumns, ages: list[int]) -> None:
        """Older weights differ for a good reason: rows of the current ones are compared."""
        metrics = mismatch(columns, current=[age == 0 for age in ages])
        if self.settings.schedule == "async":
            metrics["staleness/mean"] = sum(ages) / max(len(ages), 1)
            metrics["staleness/max"] = float(max(ages, default=0))
        self.metrics.update(metrics)
        # Of all rows: where older weights wrote every one, there is no mismatch to be nan.
        check_numbers({"old_log_probs": float(columns.old_BT[columns.mask_BT].sum())})
        check_mismatch(
            metrics.get("mismatch/mean", 0.0),
            self.settings.mismatch_limit,
            remedy="the servers' weights are stale, or their numerics differ",
        )

    def _add_metrics(
        self,
        rewards_PG: Tensor,
        records: list[dict[str, Any]],
        episodes: list[EpisodeFacts],
        real: list[bool],
    ) -> None:
        """Add the metrics of the real rows, those before refills: refills would flatter them."""
        rows = [row for row, is_real in enumerate(real) if is_real]
        self.budget.played += sum(records[row]["env_steps"] for row in rows)
        self.budget.played += self.replay_buffer.dropped_env_steps
        self.replay_buffer.dropped_env_steps = 0
        self.metrics["env_steps"] = self.budget.total
        first = self.replay_buffer.first_round
        if first is not None:
            self.metrics.update(first, refilled=float(self.replay_buffer.refilled))
            return
        self.metrics.update(
            batch_metrics(
                rewards_PG, [records[row] for row in rows], [episodes[row] for row in rows]
            )
        )

    def _compute_metrics(self, batch: Any, metrics: Any, timing_raw: Any, **options: Any) -> None:
        """Add our metrics to verl's, and write a line for the progress display and the curve."""
        super()._compute_metrics(batch, metrics, timing_raw, **options)
        for theirs, ours in RENAMED.items():
            if theirs in metrics:
                self.metrics[ours] = float(metrics[theirs])
        for name, parts in SECONDS.items():
            if any(part in timing_raw for part in parts):
                self.metrics[name] = sum(timing_raw.get(part, 0.0) for part in parts)
        metrics.update(self.metrics)
        line = json.dumps({"step": self.global_steps, **self.metrics})
        with open_unlinked(self.metrics_file, "a") as file:
            file.write(line + "\n")
        self.metrics = {}


class VerifiedTrainer(VerifiedSteps, PPOTrainerSync):  # type: ignore[misc]
    """Play, then train: `rlvr.schedule=sync`."""


class VerifiedAsyncTrainer(VerifiedSteps, PPOTrainerColocateAsync):  # type: ignore[misc]
    """Start groups ahead and train on those that have finished: `rlvr.schedule=async`.

    No more groups are started than the run trains on. verl saves those under way with a checkpoint.
    """

    def _add_async_warmup_batches(self, num_warmup_batches: int) -> None:
        left = self.total_training_steps - self.global_steps + 1
        super()._add_async_warmup_batches(min(num_warmup_batches, left))

    def prepare_step(self) -> dict[str, Any]:
        if self.global_steps + self.settings.staleness > self.total_training_steps:
            return {}
        prepared: dict[str, Any] = super().prepare_step()
        return prepared


TRAINERS = {"sync": VerifiedTrainer, "async": VerifiedAsyncTrainer}
"""By `rlvr.schedule`."""


def _read(data: Any) -> tuple[TokenColumns, list[dict[str, Any]], Tensor]:
    """Padded columns, the record of each episode, and the entropy per token."""
    names = [
        name
        for name in ("response_mask", "rollout_log_probs", "old_log_probs", "values", "entropy")
        if name in data
    ]
    padded = data.select(*names).to_padded_tensor()
    mask = padded["response_mask"].bool()
    records = [dict(record) for record in plain(data["extra_fields"])]
    columns = TokenColumns(
        mask_BT=mask,
        sampled_BT=padded["rollout_log_probs"].float(),
        old_BT=padded["old_log_probs"].float(),
        values_BT=padded["values"].float() if "values" in names else None,
    )
    return columns, records, padded["entropy"]


@ray.remote
class VerifiedRunner:
    """verl's task runner with our trainer: sets it up on the head node and trains."""

    def run(self, config: Any) -> None:
        """Train to the last step, or to the first error."""
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        try:
            schedule = RolloutSpec.read(config.data.train_files).settings.schedule
            trainer = TRAINERS[schedule](config)
            trainer.init()
            manager = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=None,
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            trainer.fit(manager)
            trainer.logger.finish()
        finally:
            tq.close()
