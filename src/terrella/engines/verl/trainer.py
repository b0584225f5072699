"""verl's synchronous trainer with verified rewards, masked episodes and a mismatch monitor.

`_compute_advantage` turns the episodes of a step into what it trains on, and stops the run when the
servers did not sample from the trainer's weights. Everything else (workers, FSDP, servers, weight
sync, checkpoints) is verl's.
    run_ppo(config, task_runner_class=VerifiedRunner)
"""

from __future__ import annotations

import itertools
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_to_nested

from terrella.core.errors import EngineError
from terrella.engines.verl import registered
from terrella.engines.verl.rollout_spec import RolloutSpec
from terrella.engines.verl.train_batch import (
    TokenColumns,
    TrainBatch,
    batch_metrics,
    group_indices,
    make_train_batch,
    mismatch,
    token_rewards,
)

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
    "actor/kl_loss": "kl",
    "critic/value_loss": "value_loss",
}

POLL_SECONDS = 0.1
"""How often to check whether a batch is complete; verl's default of 2 s is long for small ones."""
RESUMES = "the log above names the server or process; the run resumes from its last checkpoint"


class VerifiedTrainer(PPOTrainerSync):  # type: ignore[misc]
    """verl's synchronous trainer on verified episodes; see the module's docstring."""

    def __init__(self, config: Any) -> None:
        """Reads from the spec file what verl's config has no keys for."""
        super().__init__(config)
        spec = RolloutSpec.read(config.data.train_files)
        self.settings = spec.settings
        self.longest = int(spec.episodes["rollout"]["turn_tokens"])
        self.metrics: dict[str, float] = {}
        self.replay_buffer.poll_interval = POLL_SECONDS

    def _setup(self) -> None:
        super()._setup()
        if self.use_critic:
            loss = partial(
                registered.weighted_value_loss,
                clip=self.settings.value_clip,
                coefficient=self.settings.value_coefficient,
            )
            self.critic_wg.set_loss_fn(loss)

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
        self._watch_mismatch(columns)
        uids = _plain(data["uid"])
        train_batch = make_train_batch(
            columns,
            group_indices(uids, real),
            self._estimate(columns, uids),
            self.settings,
            longest=self.longest,
        )
        real_records = list(itertools.compress(records, real))
        self._add_metrics(train_batch, columns, real_records, entropy)
        fields = {
            "advantages": response_to_nested(train_batch.advantages_BT, nested),
            "returns": response_to_nested(train_batch.returns_BT, nested),
            "rollout_is_weights": response_to_nested(train_batch.weights_BT, nested),
        }
        batch = tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict(fields, batch_size=len(batch)),
        )
        self.metrics["seconds/lessons"] = time.perf_counter() - started
        return batch

    def _estimate(self, columns: TokenColumns, uids: list[str]) -> tuple[Tensor, Tensor]:
        """Advantages and returns, by the registered estimator that verl's config names."""
        estimator = get_adv_estimator_fn(self.config.algorithm.adv_estimator)
        estimated: tuple[Tensor, Tensor] = estimator(
            token_level_rewards=columns.rewards_BT,
            response_mask=columns.mask_BT,
            index=uids,
            config=self.config.algorithm,
            values=columns.values_BT,
        )
        return estimated

    def _watch_mismatch(self, columns: TokenColumns) -> None:
        metrics = mismatch(columns)
        self.metrics.update(metrics)
        gap = metrics.get("mismatch/mean", 0.0)
        if gap > self.settings.mismatch_limit:
            raise EngineError(
                "mismatch monitor",
                f"sampler and trainer differ by {gap:.3g} in log-probability on average",
                "the servers' weights are stale, or their numerics differ",
            )

    def _add_metrics(
        self, batch: TrainBatch, columns: TokenColumns, records: list[Any], entropy: Tensor
    ) -> None:
        written = [int(count) for count in columns.mask_BT.sum(1) if count]
        self.metrics.update(batch_metrics(batch, records, written))
        if columns.mask_BT.any():
            self.metrics["entropy"] = float(entropy[columns.mask_BT].mean())

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
        path = Path(self.config.trainer.default_local_dir, "metrics.jsonl")
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self.metrics = {}


def _read(data: Any) -> tuple[TokenColumns, list[dict[str, Any]], Tensor]:
    """Padded columns, the record of each episode, and the entropy per token."""
    names = [
        name
        for name in ("response_mask", "rollout_log_probs", "old_log_probs", "values", "entropy")
        if name in data
    ]
    padded = data.select(*names).to_padded_tensor()
    mask = padded["response_mask"].bool()
    records = [dict(record) for record in _plain(data["extra_fields"])]
    columns = TokenColumns(
        mask_BT=mask,
        sampled_BT=padded["rollout_log_probs"].float(),
        old_BT=padded["old_log_probs"].float(),
        rewards_BT=token_rewards(records, mask),
        values_BT=padded["values"].float() if "values" in names else None,
    )
    return columns, records, padded["entropy"]


def _plain(column: Any) -> list[Any]:
    """A column of Python objects as a list; the transfer queue wraps some of them."""
    return [getattr(item, "data", item) for item in column]


@ray.remote
class VerifiedRunner:
    """verl's task runner with our trainer: sets it up on the head node and trains."""

    def run(self, config: Any) -> None:
        """Train to the last step, or to the first error."""
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        try:
            trainer = VerifiedTrainer(config)
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
